"""The scenarios of a study: when frames are due, what they show, their result metric and their validity rules."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from pydantic import Field

from rosbag_tools.drive.recording import SEED
from shared.config import Section

DAY_S = 86_400.0
_SHARED_WINDOW = (
    48  # Unanswered frames of all vehicles together in bursts, server and offline runs; the queue limit is 64.
)


class RunLength(Section):
    """The length of a scenario's runs, if it differs from the study's."""

    frames: int | None = Field(default=None, ge=1, le=10_000_000)  # Measured frames of each vehicle.
    warm_up_frames: int | None = Field(default=None, ge=0, le=100_000)  # Frames before the measured ones.


class ValidityRules(RunLength):
    """The conditions for a valid run of an MLPerf scenario; the defaults are MLPerf's."""

    min_duration_s: float = Field(default=600.0, ge=0, le=DAY_S)


class SingleStreamRules(ValidityRules):
    """MLPerf's early stopping needs at least 64 queries for a 90th percentile."""

    min_queries: int = Field(default=64, ge=1)


class MultiStreamRules(ValidityRules):
    """Frames are sent in queries; `frames` and `warm_up_frames` are rounded up to whole queries."""

    min_queries: int = Field(default=662, ge=1)
    samples_per_query: int = Field(default=8, ge=1, le=1024)


class ServerRules(ValidityRules):
    """`rate_hz` is the rate of all vehicles together; `limit_ms` replaces the latency limit of an MLPerf benchmark.

    MLPerf's early stopping needs at least 459 queries, all within the limit, to show that 99 % are within the limit.
    """

    rate_hz: float = Field(default=2.0, gt=0, le=1e5)
    limit_ms: float = Field(default=1000.0, gt=0, le=DAY_S * 1e3)
    min_queries: int = Field(default=459, ge=1)


class OfflineRules(ValidityRules):
    """All frames are due at once."""

    min_samples: int = Field(default=24_576, ge=1)


class CameraSettings(RunLength):
    """Frames of a camera, of which the vehicle drops those that it cannot send."""

    rate_hz: float = Field(default=10.0, gt=0, le=1e4)  # Of each vehicle. The synthetic drive is recorded at 10 Hz.


class CapacitySettings(RunLength):
    """Limits of the search for the maximum number of vehicles: p99 ≤ `limit_ms`, unanswered ≤ `unanswered_share`."""

    rate_hz: float = Field(default=1.0, gt=0, le=1e4)  # Frame rate of each vehicle.
    limit_ms: float = Field(default=1000.0, gt=0, le=DAY_S * 1e3)
    unanswered_share: float = Field(default=0.01, ge=0, lt=1)
    most: int = Field(default=32, ge=1, le=256)  # Maximum number of vehicles to try.


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
    one_per_worker: RunLength = RunLength()
    camera: CameraSettings = CameraSettings()
    capacity: CapacitySettings = CapacitySettings()


class Footage(StrEnum):
    """The images of the camera."""

    ONE = "one"  # The first frame of the drive, repeated.
    DRIVE = "drive"  # The drive, repeated if it is shorter than the run.
    MIXED = "mixed"  # Images of the drive in several sizes.


@dataclass(frozen=True, slots=True)
class VehicleLoad:
    """The frames that a vehicle sends in a run."""

    frames: int  # Including the warm-up.
    warm_up: int
    vehicles: int
    seed: int
    settings: RunLength
    workers: int = 1
    drive_seed: int = SEED

    @property
    def window(self) -> int:
        """Maximum number of unanswered frames per vehicle, for scenarios that keep the workers' queues full."""
        return max(1, _SHARED_WINDOW // self.vehicles)

    def of_vehicle(self, number: int) -> Self:
        """Returns the same load with a separate seed for the vehicle."""
        return replace(self, seed=self.seed + number)


Flags = Callable[[VehicleLoad], tuple[str, ...]]


def _closed(_: VehicleLoad) -> tuple[str, ...]:
    return ("--closed-loop", "--window", "1")


def _bursts(load: VehicleLoad) -> tuple[str, ...]:
    assert isinstance(load.settings, MultiStreamRules)
    size = load.settings.samples_per_query
    return ("--closed-loop", "--burst", str(size), "--window", str(min(size, load.window)))


def _poisson(load: VehicleLoad) -> tuple[str, ...]:
    # Independent Poisson processes sum to a Poisson process, so each vehicle sends its share of the rate.
    assert isinstance(load.settings, ServerRules)
    rate_hz = load.settings.rate_hz / load.vehicles
    arrivals = ("--arrivals", "poisson", "--arrival-rate", f"{rate_hz:.9g}", "--seed", str(load.seed))
    return (*arrivals, "--queue", str(load.frames), "--window", str(load.window))


def _all_at_once(load: VehicleLoad) -> tuple[str, ...]:
    burst = ("--burst", str(load.frames)) if load.frames > 1 else ()
    return ("--closed-loop", *burst, "--window", str(load.window))


def _one_per_worker(load: VehicleLoad) -> tuple[str, ...]:
    burst = ("--burst", str(load.frames)) if load.frames > 1 else ()
    return ("--closed-loop", *burst, "--window", str(max(1, load.workers // load.vehicles)))


def _uniform(load: VehicleLoad) -> tuple[str, ...]:
    assert isinstance(load.settings, CameraSettings | CapacitySettings)
    return ("--arrivals", "uniform", "--arrival-rate", f"{load.settings.rate_hz:.9g}")


@dataclass(frozen=True, slots=True)
class StudyScenario:
    """A scenario; `metric` is the column of the table of runs with its result."""

    help: str
    metric: str
    flags: Flags  # Returns the flags of `skylane edge play`.
    footage: Footage = Footage.DRIVE
    resize_at: str = "edge"  # Unless the axis `resize_at` sets it.
    is_cold: bool = False  # Every run needs newly started workers.
    warms_up: bool = True  # Warm-up frames precede the measured ones.


SCENARIOS = {
    "cold_start": StudyScenario(
        "the same image, from the first frame of a new worker on, without warm-up",
        "total_mean_ms",
        _closed,
        Footage.ONE,
        is_cold=True,
        warms_up=False,
    ),
    "same_image": StudyScenario("the same image repeated, after warm-up", "total_mean_ms", _closed, Footage.ONE),
    "different_images": StudyScenario("different images of the same size, after warm-up", "total_mean_ms", _closed),
    "mixed_sizes": StudyScenario(
        "images of several sizes, resized by the worker", "total_mean_ms", _closed, Footage.MIXED, "cloud"
    ),
    "single_stream": StudyScenario("MLPerf: each frame after the reply to the previous one", "total_p90_ms", _closed),
    "multi_stream": StudyScenario(
        "MLPerf: 8 frames at once, after the replies to the previous 8", "query_p99_ms", _bursts
    ),
    "server": StudyScenario("MLPerf: Poisson arrivals at a given rate, 99 % within a limit", "total_p99_ms", _poisson),
    "offline": StudyScenario("MLPerf: all frames at once", "throughput_hz", _all_at_once, warms_up=False),
    "one_per_worker": StudyScenario(
        "all frames at once, one unanswered frame for each worker", "throughput_hz", _one_per_worker, warms_up=False
    ),
    "camera": StudyScenario(
        "frames at a constant rate, as from a camera; the vehicle drops what it cannot send", "total_p95_ms", _uniform
    ),
    "capacity": StudyScenario(
        "search for the maximum number of vehicles at a given frame rate", "capacity_vehicles", _uniform
    ),
}


def frame_counts(name: str, settings: RunLength, frames: int, warm_up: int) -> tuple[int, int]:
    """Returns the numbers of measured frames and of warm-up frames of a vehicle.

    `frames` and `warm_up` are the study's numbers, used if the settings of the scenario have none.
    """
    measured = frames if settings.frames is None else settings.frames
    warming = warm_up if settings.warm_up_frames is None else settings.warm_up_frames
    if not SCENARIOS[name].warms_up:
        warming = 0
    if isinstance(settings, MultiStreamRules):
        size = settings.samples_per_query
        measured, warming = -(-measured // size) * size, -(-warming // size) * size
    return measured, warming
