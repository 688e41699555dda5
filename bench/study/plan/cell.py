"""A cell of a study: one combination of axis values."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from bench.study.plan.axes import NamedLink
from bench.study.plan.scenarios import SCENARIOS

_PLURAL = {"vehicles": "vehicle", "workers": "worker", "frames": "frame"}


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings of a worker; cells with equal settings share the workers of a block."""

    model: str
    engine: str
    format: str
    precision: str
    device: str
    batch: int
    workers: int
    cold: str  # Name of the cell if it needs newly started workers, else empty.


@dataclass(frozen=True, slots=True)
class StudyCell:
    """A combination of axis values; `name` is unique within the study and used as a folder name."""

    name: str
    model: str
    engine: str
    format: str
    precision: str
    device: str
    transport: str
    codec: str
    resolution: str
    resize_at: str | None
    batch: int
    scenario: str
    vehicles: int
    workers: int
    frames: int | None
    link: NamedLink

    @property
    def setup(self) -> WorkerSetup:
        """The settings of the cell's workers."""
        cold = self.name if SCENARIOS[self.scenario].is_cold else ""
        return WorkerSetup(
            self.model, self.engine, self.format, self.precision, self.device, self.batch, self.workers, cold
        )

    def columns(self) -> dict[str, str | int | float | None]:
        """Returns the axes as table columns; the link has its name and one column `link_<setting>` per setting."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("name", "link")}
        link = {f"link_{name}": value for name, value in self.link.model_dump(exclude={"name"}).items()}
        return plain | {"link": self.link.name} | link


def cell_name(values: dict[str, Any], varied: Sequence[str]) -> str:
    """Returns the name of a cell: its values on the varied axes, such as `openvino.jpeg.4-vehicles`."""
    return ".".join(_label(axis, values[axis]) for axis in varied) or str(values["scenario"])


def _label(axis: str, value: Any) -> str:
    if value is None:
        return f"default-{axis}"
    if axis in _PLURAL:
        return f"{value}-{_PLURAL[axis]}{'' if value == 1 else 's'}"
    if axis == "batch":
        return f"batch-{value}"
    if axis == "link":
        return "no-link" if value.name == "none" else str(value.name)
    return str(value).replace(":", "-")
