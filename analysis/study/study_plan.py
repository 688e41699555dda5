"""Reads the YAML file of a study, derives its cells, combinations of axis values, and orders its runs."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count, product
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from analysis.study.axes import AXES, NAME, NONE, TUNED, Axes, Combination, NamedLink, inference_times_ms
from analysis.study.scenarios import DAY_S, SCENARIOS, Footage, RunLength, ScenarioSettings
from edge.presenting.presenter import PRESENTERS
from edge.transports.transport import MQTT
from modelling.recipes import RECIPES
from rosbag_tools.drive.recording import SEED
from shared.config import ConfigError, Section, read_yaml
from shared.errors import suggestion
from shared.models.repository import Repository


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCell(WorkerSetup):
    """A combination of axis values; `name` is unique within the study and used as a folder name."""

    name: str
    transport: str
    codec: str
    resolution: str
    resize_at: str | None
    scenario: str
    vehicles: int
    frames: int | None
    link: NamedLink
    gate: str
    local_model: str
    cascade: str
    tuning: str | None
    dispatch: str | None
    present: str

    @property
    def setup(self) -> WorkerSetup:
        """The settings of the cell's workers."""
        return WorkerSetup(**{field.name: getattr(self, field.name) for field in fields(WorkerSetup)})

    def columns(self) -> dict[str, str | int | float | None]:
        """Returns the axes as table columns; the link has its name and one column `link_<setting>` per setting."""
        plain = {axis: getattr(self, axis) for axis in AXES if axis != "link"}
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


OF_THE_BAG = "bag"  # The resolution of the cells if a bag is given.
MAX_CELLS = 10_000  # A study with more cells would never finish; the file is probably wrong.


class ReportSettings(Section):
    """The key `report`: a price per hour adds the cost of 24 h of footage to the report."""

    price_per_hour: float | None = Field(default=None, ge=0)
    currency: str = Field(default="EUR", min_length=1, max_length=8)
    footage_hz: float = Field(default=24.0, gt=0, le=1e4)


class ReuseLimits(Section):
    """The key `reuse`: the longest reuse of a result; None: the tuned one."""

    frames: int | None = Field(default=None, ge=1)
    ms: float | None = Field(default=None, gt=0, le=DAY_S * 1e3)


class StudyPlan(Section):
    """The file of a study."""

    name: str = Field(pattern=NAME)
    description: str = ""
    axes: Axes = Axes()
    exclude: tuple[Combination, ...] = ()
    include: tuple[Combination, ...] = ()
    repetitions: int = Field(default=3, ge=1, le=1000)
    frames: int = Field(default=30, ge=1, le=10_000_000)  # Measured frames of each vehicle in a run.
    warm_up_frames: int = Field(default=5, ge=0, le=100_000)  # Frames of each vehicle before the measured ones.
    cool_down_s: float = Field(default=1.0, ge=0, le=DAY_S)  # Pause between runs.
    run_limit_s: float = Field(default=3600.0, gt=0, le=30 * DAY_S)  # Timeout of a run.
    bag: Path | None = None  # The bag that the vehicles play; None: the synthetic drive.
    drive_frames: int = Field(default=40, ge=2, le=100_000)  # Frames of the synthetic drive; longer runs repeat it.
    static_camera: bool = False  # True: the camera of the synthetic drive stands at the kerb.
    drive_seeds: tuple[int, ...] = Field(default=(SEED,), min_length=1)  # Each repetition plays the next drive.
    reuse: ReuseLimits = ReuseLimits()
    accuracy: bool = False  # Whether the returned masks are compared with the true labels.
    scenarios: ScenarioSettings = ScenarioSettings()
    report: ReportSettings = ReportSettings()

    @model_validator(mode="after")
    def _combinations_have_axes(self) -> Self:
        for key in ("exclude", "include"):
            for number, combination in enumerate(getattr(self, key)):
                if not combination.given():
                    raise ValueError(f"{key}.{number} names no axis: give at least one, or remove it")
        return self

    @model_validator(mode="after")
    def _drives_are_consistent(self) -> Self:
        # A saved plan has every key: only another value than the default asks for something.
        of_the_drive = ("drive_seeds", "static_camera")
        given = [key for key in of_the_drive if getattr(self, key) != type(self).model_fields[key].default]
        if self.bag is not None and given:
            raise ValueError(f"bag: {' and '.join(given)} belong to the synthetic drive: remove them, or bag")
        if self.repetitions % len(self.drive_seeds):
            raise ValueError(
                f"repetitions {self.repetitions} with {len(self.drive_seeds)} drive_seeds: give a multiple of their number, "
                "so that every drive is played equally often"
            )
        return self

    def drive_seed(self, repetition: int) -> int:
        """Returns the seed of the drive that all cells play in a repetition, counted from 1."""
        return self.drive_seeds[(repetition - 1) % len(self.drive_seeds)]

    def settings(self, scenario: str) -> RunLength:
        """Returns the settings of a scenario."""
        found: RunLength = getattr(self.scenarios, scenario)
        return found


def read_plan(path: Path, models: Path) -> StudyPlan:
    """Reads the file of a study; `models` is the model repository.

    Raises:
        ConfigError: An axis or value does not exist, an exclusion matches nothing, or no cell is left. The message names
            the file, the key and the valid values.
    """
    plan = read_yaml(path, StudyPlan)
    known = model_names(models)
    given = [("axes", {axis: getattr(plan.axes, axis) for axis in AXES})]
    for key, combinations in (("exclude", plan.exclude), ("include", plan.include)):
        given += [(f"{key}.{number}", each.given()) for number, each in enumerate(combinations)]
    for key, axes in given:
        for axis in ("model", "local_model"):
            for name in axes.get(axis, ()):
                if name not in known and (axis, name) != ("local_model", NONE):
                    problem = f"no model {name!r}{suggestion(name, known)}"
                    raise ConfigError(path, f"{problem} (looked in {models})", f"{key}.{axis}")
        for tuning in axes.get("tuning", ()):
            if tuning is not None and not Path(tuning).is_file():
                raise ConfigError(path, f"there is no tuning file {tuning}", f"{key}.tuning")
    try:
        cells(plan)
    except ValueError as error:
        raise ConfigError(path, str(error)) from error
    if plan.bag is not None and not plan.bag.exists():
        raise ConfigError(path, f"there is no bag {plan.bag}", "bag")
    return plan


def model_names(models: Path) -> tuple[str, ...]:
    """Returns the models of the repository and those that can be built."""
    repository = Repository(models)
    existing = repository.names() if repository.exists else ()
    return tuple(sorted({*existing, *RECIPES}))


def cells(plan: StudyPlan) -> tuple[StudyCell, ...]:
    """Returns the distinct cells of a plan in the order of the file.

    Raises:
        ValueError: An exclusion matches nothing, no cell is left, or there are too many cells.
    """
    chosen = {axis: getattr(plan.axes, axis) for axis in AXES}
    combinations = _product(chosen)
    for number, combination in enumerate(plan.exclude):
        given = combination.given()
        kept = [values for values in combinations if not all(values[axis] in given[axis] for axis in given)]
        if len(kept) == len(combinations):
            raise ValueError(f"exclude.{number} matches no combination: correct it or remove it")
        combinations = kept
    for combination in plan.include:
        combinations += _product({axis: values[:1] for axis, values in chosen.items()} | combination.given())
    for values in combinations:
        if values["scenario"] == "capacity":
            values["vehicles"] = 1  # The scenario itself searches for the number of vehicles.
    _check(combinations, plan)
    if plan.bag is not None:
        combinations = [values | {"resolution": OF_THE_BAG} for values in combinations]
    varied = [axis for axis in AXES if len({values[axis] for values in combinations}) > 1]
    named = {cell_name(values, varied): values for values in combinations}
    distinct = {tuple(values.items()) for values in combinations}
    if len(named) < len(distinct):
        raise ValueError("axes.link: two different links have the same name: rename one")
    return tuple(
        StudyCell(name=name, cold=name if SCENARIOS[values["scenario"]].is_cold else "", **values)
        for name, values in named.items()
    )


def _product(axes: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(AXES, values, strict=True)) for values in product(*axes.values())]


def _check(combinations: Sequence[Mapping[str, Any]], plan: StudyPlan) -> None:
    for values in combinations:
        _check_footage(values, plan)
        _check_reuse(values)
        if values["workers"] > 1 and values["transport"] != MQTT and values["link"].has_effect:
            raise ValueError(
                f"link {values['link'].name} with {values['workers']} workers and transport {values['transport']}: a link "
                "leads to a single address, so use one worker, or transport mqtt with its single broker"
            )
        if values["dispatch"] is not None and values["transport"] != MQTT:
            raise ValueError(
                f"dispatch {values['dispatch']} with transport {values['transport']}: only vehicles with transport {MQTT} "
                "dispatch frames; exclude this combination"
            )
        if values["fixed_inference_ms"] is not None:
            inference_times_ms(values["fixed_inference_ms"], values["workers"])
    if len(combinations) > MAX_CELLS:
        raise ValueError(f"{len(combinations)} cells: a study has at most {MAX_CELLS}; vary fewer axes")
    if not combinations:
        raise ValueError("exclude removes every combination: correct it")


def _check_footage(values: Mapping[str, Any], plan: StudyPlan) -> None:
    footage = SCENARIOS[values["scenario"]].footage
    if plan.bag is not None and footage is not Footage.DRIVE:
        raise ValueError(f"bag: scenario {values['scenario']} plays images of its own: remove one of the two")
    if plan.bag is not None and values["resolution"] != Axes().resolution[0]:
        raise ValueError(f"bag: its frames have a resolution of their own: remove {values['resolution']}")
    if plan.accuracy and footage is Footage.MIXED:
        raise ValueError(f"accuracy: the images of scenario {values['scenario']} have no true labels: remove it")
    if values["fixed_inference_ms"] is not None and footage is not Footage.DRIVE:
        raise ValueError(
            f"fixed_inference_ms: its answers are computed for a drive, and scenario {values['scenario']} plays images of "
            "its own: exclude this combination"
        )


def _check_reuse(values: Mapping[str, Any]) -> None:
    if values["cascade"] != NONE and values["local_model"] == NONE:
        raise ValueError(
            f"cascade {values['cascade']} without a local_model: exclude this combination, or give a local_model"
        )
    if values["present"] != NONE and PRESENTERS[values["present"]].needs_local and values["local_model"] == NONE:
        raise ValueError(
            f"present {values['present']} without a local_model: exclude this combination, or give a local_model"
        )
    if values["tuning"] is not None and values["gate"] == values["local_model"] == NONE:
        raise ValueError("tuning without a gate and a local_model: exclude this combination")


def axis_values(planned: tuple[StudyCell, ...]) -> dict[str, list[Any]]:
    """Returns the values of each axis that occur in the cells, in their order; links by their names."""
    found = {axis: list(dict.fromkeys(getattr(cell, axis) for cell in planned)) for axis in AXES}
    return found | {"link": [link.name for link in found["link"]]}


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A cell and one of its repetitions; `order` is the position in the study, starting at 1."""

    order: int
    cell: StudyCell
    repetition: int


def ordered_groups(
    cells: Sequence[StudyCell], repetitions: int, seed: int
) -> list[tuple[WorkerSetup, list[PlannedRun]]]:
    """Returns all runs of a study in the random order determined by `seed`, grouped by the workers that they share."""
    groups = []
    positions = count(1)
    for repetition in range(1, repetitions + 1):
        generator = random.Random(f"{seed}/{repetition}")
        by_setup: dict[WorkerSetup, list[StudyCell]] = {}
        for cell in cells:
            by_setup.setdefault(cell.setup, []).append(cell)
        block = list(by_setup.items())
        generator.shuffle(block)
        for setup, members in block:
            generator.shuffle(members)
            groups.append((setup, [PlannedRun(next(positions), cell, repetition) for cell in members]))
    return groups


def run_seed(seed: int, cell: str, repetition: int) -> int:
    """Returns the seed of a run's random arrivals, jitter and losses."""
    return random.Random(f"{seed}/{cell}/{repetition}").randrange(1 << 31)
