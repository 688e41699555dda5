"""A cell of a study: one combination of axis values."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from analysis.study.axes import NONE, TUNED, NamedLink
from analysis.study.scenarios import SCENARIOS


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings of a worker; cells with equal settings share the workers of a block."""

    model: str
    engine: str | None
    format: str
    precision: str | None
    device: str
    batch: int
    workers: int
    fixed_inference_ms: str | None
    cold: str  # Name of the cell if it needs newly started workers, else empty.


@dataclass(frozen=True, slots=True)
class StudyCell:
    """A combination of axis values; `name` is unique within the study and used as a folder name."""

    name: str
    model: str
    engine: str | None
    format: str
    precision: str | None
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
    gate: str
    local_model: str
    cascade: str
    tuning: str | None
    fixed_inference_ms: str | None
    dispatch: str | None
    present: str

    @property
    def setup(self) -> WorkerSetup:
        """The settings of the cell's workers."""
        cold = self.name if SCENARIOS[self.scenario].is_cold else ""
        return WorkerSetup(
            self.model,
            self.engine,
            self.format,
            self.precision,
            self.device,
            self.batch,
            self.workers,
            self.fixed_inference_ms,
            cold,
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
    name = str(value.name) if axis == "link" else str(value)
    if axis in _NOTHING and name == NONE:
        return _NOTHING[axis]
    return _LABELS[axis](name) if axis in _LABELS else name.replace(":", "-")


def _counted(axis: str) -> Callable[[str], str]:
    return lambda count: f"{count}-{axis.removesuffix('s') if count == '1' else axis}"


_NOTHING = {
    "link": "no-link",
    "gate": "no-gate",
    "local_model": "no-local-model",
    "cascade": "no-cascade",
    "present": "no-presenter",
}
_LABELS: dict[str, Callable[[str], str]] = {
    **{axis: _counted(axis) for axis in ("vehicles", "workers", "frames")},
    "batch": lambda size: f"batch-{size}",
    "cascade": lambda thresholds: "cascade" if thresholds == TUNED else f"cascade-{thresholds}",
    "tuning": lambda path: re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem),
    "fixed_inference_ms": lambda times_ms: f"{times_ms.replace('/', '-')}-ms",
}
