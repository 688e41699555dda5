"""The scenarios: how frames fall due, what they show, which figure tells the result, and what makes it valid."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from pydantic import Field

from shared.config import Section

DAY_S = 86_400.0
_SHARED_WINDOW = 48  # Unanswered frames of all vehicles together: below the 64 that a worker lets wait.


class RunLength(Section):
    """How long a scenario's runs are, where it is not as the study says."""

    frames: int | None = Field(default=None, ge=1, le=10_000_000)  # Measured, of each vehicle.
    warm_up_frames: int | None = Field(default=None, ge=0, le=100_000)  # Before them.


class ValidityRules(RunLength):
    """What makes a run of one of MLPerf's scenarios valid. The defaults are MLPerf's."""

    min_duration_s: float = Field(default=600.0, ge=0, le=DAY_S)


class SingleStreamRules(ValidityRules):
    """The fewest queries are those from which MLPerf's early stopping can tell a 90th percentile."""

    min_queries: int = Field(default=64, ge=1)


class MultiStreamRules(ValidityRules):
    """Frames come in queries of `samples_per_query`; `frames` and `warm_up_frames` are rounded up to whole ones."""

    min_queries: int = Field(default=662, ge=1)
    samples_per_query: int = Field(default=8, ge=1, le=1024)


class ServerRules(ValidityRules):
    """`rate_hz` is of all vehicles together. MLPerf sets the latency a benchmark; `limit_ms` has to be chosen.

    459 queries are the fewest from which, with all of them in time, early stopping can tell that 99 % are.
    """

    rate_hz: float = Field(default=2.0, gt=0, le=1e5)
    limit_ms: float = Field(default=1000.0, gt=0, le=DAY_S * 1e3)
    min_queries: int = Field(default=459, ge=1)


class OfflineRules(ValidityRules):
    """All frames fall due at once."""

    min_samples: int = Field(default=24_576, ge=1)


class CapacitySettings(RunLength):
    """How many vehicles fit, each offering `rate_hz`: p99 ≤ `limit_ms`, a share of at most `unanswered_share` lost."""

    rate_hz: float = Field(default=1.0, gt=0, le=1e4)  # Of each vehicle.
    limit_ms: float = Field(default=1000.0, gt=0, le=DAY_S * 1e3)
    unanswered_share: float = Field(default=0.01, ge=0, lt=1)
    most: int = Field(default=32, ge=1, le=256)  # Vehicles; the search ends there.


class ScenarioSettings(Section):
    """The key `scenarios` of a study."""

    cold_start: RunLength = RunLength()
    same_image: RunLength = RunLength()
    different_images: RunLength = RunLength()
    mixed_sizes: RunLength = RunLength()
    single_stream: SingleStreamRules = SingleStreamRules()
    multi_stream: MultiStreamRules = MultiStreamRules()
    server: ServerRules = ServerRules()
    offline: OfflineRules = OfflineRules()
    capacity: CapacitySettings = CapacitySettings()


class Footage(StrEnum):
    """What the camera sees."""

    ONE = "one"  # One frame of the drive, again and again.
    DRIVE = "drive"  # The drive, again and again where it is shorter than the run.
    MIXED = "mixed"  # Pictures of the drive in several sizes.


@dataclass(frozen=True, slots=True)
class VehicleLoad:
    """What a vehicle offers: `frames` in all, `warm_up` of them before it is measured."""

    frames: int
    warm_up: int
    vehicles: int
    seed: int
    settings: RunLength

    @property
    def window(self) -> int:
        """Unanswered frames of one vehicle, where the scenario wants as many as the workers take."""
        return max(1, _SHARED_WINDOW // self.vehicles)

    def of_vehicle(self, number: int) -> Self:
        """The same with chances of the vehicle's own."""
        return replace(self, seed=self.seed + number)


Flags = Callable[[VehicleLoad], tuple[str, ...]]


def _closed(_: VehicleLoad) -> tuple[str, ...]:
    return ("--closed-loop", "--window", "1")


def _resized_in_the_cloud(load: VehicleLoad) -> tuple[str, ...]:
    return (*_closed(load), "--resize-at", "cloud")


def _bursts(load: VehicleLoad) -> tuple[str, ...]:
    assert isinstance(load.settings, MultiStreamRules)
    size = load.settings.samples_per_query
    return ("--closed-loop", "--burst", str(size), "--window", str(min(size, load.window)))


def _poisson(load: VehicleLoad) -> tuple[str, ...]:
    # Poisson processes that know nothing of each other sum to one: each vehicle offers its part of the rate.
    assert isinstance(load.settings, ServerRules)
    rate_hz = load.settings.rate_hz / load.vehicles
    arrivals = ("--arrivals", "poisson", "--arrival-rate", f"{rate_hz:.9g}", "--seed", str(load.seed))
    return (*arrivals, "--queue", str(load.frames), "--window", str(load.window))


def _all_at_once(load: VehicleLoad) -> tuple[str, ...]:
    burst = ("--burst", str(load.frames)) if load.frames > 1 else ()
    return ("--closed-loop", *burst, "--window", str(load.window))


def _uniform(load: VehicleLoad) -> tuple[str, ...]:
    assert isinstance(load.settings, CapacitySettings)
    return ("--arrivals", "uniform", "--arrival-rate", f"{load.settings.rate_hz:.9g}")


@dataclass(frozen=True, slots=True)
class StudyScenario:
    """A row of the table. `metric` is the column of the runs' table that holds its result."""

    help: str
    metric: str
    flags: Flags
    footage: Footage = Footage.DRIVE
    is_cold: bool = False  # The worker has run nothing before, so every run needs a worker of its own.
    warms_up: bool = True  # Frames are sent before the measured ones.


SCENARIOS = {
    "cold_start": StudyScenario(
        "the same image, from a worker's very first frame on: nothing is warmed up, nothing left out",
        "total_mean_ms",
        _closed,
        Footage.ONE,
        is_cold=True,
        warms_up=False,
    ),
    "same_image": StudyScenario("the same image again and again, warm", "total_mean_ms", _closed, Footage.ONE),
    "different_images": StudyScenario("a different image every time, all of one size, warm", "total_mean_ms", _closed),
    "mixed_sizes": StudyScenario(
        "images of several sizes, resized by the worker", "total_mean_ms", _resized_in_the_cloud, Footage.MIXED
    ),
    "single_stream": StudyScenario("MLPerf: the next frame when the last is answered", "total_p90_ms", _closed),
    "multi_stream": StudyScenario("MLPerf: the next 8 frames when the last 8 are answered", "query_p99_ms", _bursts),
    "server": StudyScenario("MLPerf: Poisson arrivals at a given rate, 99 % within a limit", "total_p99_ms", _poisson),
    "offline": StudyScenario("MLPerf: all frames at once", "throughput_hz", _all_at_once, warms_up=False),
    "capacity": StudyScenario("how many vehicles fit, each with frames at a given rate", "capacity_vehicles", _uniform),
}


def frame_counts(name: str, settings: RunLength, frames: int, warm_up: int) -> tuple[int, int]:
    """How many frames of a vehicle are measured in a scenario, and how many go before them.

    `frames` and `warm_up` are the study's, used where the scenario's own settings leave them out.
    """
    measured = frames if settings.frames is None else settings.frames
    before = warm_up if settings.warm_up_frames is None else settings.warm_up_frames
    if not SCENARIOS[name].warms_up:
        before = 0
    if isinstance(settings, MultiStreamRules):
        size = settings.samples_per_query
        measured, before = -(-measured // size) * size, -(-before // size) * size
    return measured, before
