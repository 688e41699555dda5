"""A cell: one combination of the axes' values."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from bench.study.plan.axes import NamedLink
from bench.study.plan.scenarios import SCENARIOS

_PLURAL = {"vehicles": "vehicle", "workers": "worker", "frames": "frame"}


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is started with. Cells of one setup can share the workers of a block."""

    model: str
    engine: str
    format: str
    precision: str
    device: str
    batch: int
    workers: int
    cold: str  # The cell's name where it needs workers that nobody used before, else empty.


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One combination; `name` is unique in its study and a folder's name."""

    name: str
    model: str
    engine: str
    format: str
    precision: str
    device: str
    transport: str
    codec: str
    resolution: str
    batch: int
    scenario: str
    vehicles: int
    workers: int
    frames: int | None
    link: NamedLink

    @property
    def setup(self) -> WorkerSetup:
        """What its workers are started with."""
        cold = self.name if SCENARIOS[self.scenario].is_cold else ""
        return WorkerSetup(
            self.model, self.engine, self.format, self.precision, self.device, self.batch, self.workers, cold
        )

    def columns(self) -> dict[str, str | int | float | None]:
        """The axes as columns of a table; of the link its name, and each of its figures as `link_<figure>`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("name", "link")}
        figures = self.link.model_dump(exclude={"name"})
        return plain | {"link": self.link.name} | {f"link_{name}": value for name, value in figures.items()}


def cell_name(values: dict[str, Any], varied: Sequence[str]) -> str:
    """A cell's name: its values of the axes that are varied, such as `openvino.jpeg.4-vehicles`."""
    return ".".join(_told(axis, values[axis]) for axis in varied) or str(values["scenario"])


def _told(axis: str, value: Any) -> str:
    if axis in _PLURAL:
        return f"{value}-{_PLURAL[axis]}{'' if value == 1 else 's'}"
    if axis == "batch":
        return f"batch-{value}"
    if axis == "link":
        return "no-link" if value.name == "none" else str(value.name)
    return str(value).replace(":", "-")
