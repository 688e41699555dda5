"""`skylane bench baselines noscope`: compares Skylane with a reproduction of Distributed NoScope, drive by drive.

All systems answer "is there a vehicle?" for the same frames of a fixed camera, with the same networks and thresholds. The
undistributed reproduction asks the reference network about every frame, on one server.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.statistics.description import mean_of_runs
from bench.baselines.noscope.drives import JUDGED_SEEDS, JudgedDrive, answer_files, fixed_camera_bag, read_drive
from bench.baselines.noscope.rig import (
    LATENCY_PARTS,
    LOCAL,
    REUSED,
    STEPS,
    Reproduction,
    RigSettings,
    Skylane,
    SystemRun,
)
from bench.harness import options
from bench.harness.comparison import alternating
from bench.harness.output import interval_text, target_text
from cloud.models.loader import ModelLoader
from ops.processes.child import BenchError
from ops.processes.environment import BenchRun
from shared.flags import WholeRange
from shared.models.repository import Repository
from shared.reuse.tuning import read_tuning, shipped_tuning
from shared.terminal_table import Table, result_table

SPEED_UP = 5.52  # The original's on 500 frames: 784 s undistributed, 142 s with everything.
MAX_LOSS_POINTS = 1.0
UNDISTRIBUTED = "undistributed reproduction"
_TIMES = (*STEPS, *LATENCY_PARTS)


@dataclass(frozen=True, slots=True)
class NoScopePlan:
    """Settings of the comparison."""

    seeds: tuple[int, ...] = options.option(
        JUDGED_SEEDS,
        flag="--seed",
        multiple=True,
        type=WholeRange(0),
        help=f"Seed of a drive to play (repeatable). [{JUDGED_SEEDS[0]} to {JUDGED_SEEDS[-1]}]",
    )
    bags: tuple[Path, ...] = options.option(
        (),
        flag="--bag",
        multiple=True,
        type=options.EXISTING_PATH,
        help="Bag with true boxes to play instead of the drives (repeatable).",
    )
    frames: int = options.frames(500, text="Frames of each drive.")
    servers: tuple[int, ...] = options.option(
        (1, 4),
        flag="--servers",
        multiple=True,
        type=options.SERVER_COUNT,
        help="Number of servers and of workers (repeatable). [1 and 4]",
    )
    inference_ms: float = options.number(100.0, 0.0, 60_000.0, "Time that the reference network takes for an image.")
    models: Path = options.models()
    model: str = options.option("car-reference", show_default=True, help="Name of the reference network.")
    local_model: str = options.option("car-tiny", show_default=True, help="Name of the specialised network.")
    tuning: Path | None = options.option(
        type=options.EXISTING_PATH, help="Tuning file with the thresholds. [the shipped one of the model]"
    )


def measure(plan: NoScopePlan, run: BenchRun) -> dict[str, Any]:
    """Compare with Distributed NoScope, reproduced: difference detector, small network, several servers."""
    bags = plan.bags or tuple(_rendered(plan, seed, run) for seed in plan.seeds)
    drives = [read_drive(bag, plan.frames) for bag in bags]
    settings = _settings(plan, bags, run)
    run.step("starting servers and workers")
    servers = Reproduction(run, settings, max(plan.servers))
    workers = {count: Skylane(run, settings, count) for count in plan.servers}
    systems: dict[str, Callable[[int], SystemRun]] = {
        UNDISTRIBUTED: lambda number: servers.play(drives[number], number, servers=1, reuse=False)
    }
    for count, skylane in workers.items():
        systems[f"reproduction, {_servers(count)}"] = partial(_reproduced, servers, drives, count)
        systems[f"Skylane, {_workers(count)}"] = partial(_skylane, skylane, drives)
    runs: dict[str, list[SystemRun]] = {name: [] for name in systems}
    for number, name in alternating(list(systems), len(drives)):
        run.step(f"drive {number + 1} of {len(drives)}: {name}")
        runs[name].append(systems[name](number))
    records = {name: _record(each, runs[UNDISTRIBUTED], drives) for name, each in runs.items()}
    return {
        "systems": records,
        "drives": [
            {"bag": drive.bag.name, "vehicle_share": drive.vehicle_share, "changes": drive.changes} for drive in drives
        ],
        "targets": _targets(records[f"Skylane, {_workers(min(plan.servers))}"]),
        "plan": {key: value for key, value in asdict(plan).items() if key not in ("bags", "models", "tuning")},
        "tuning": settings.tuning.model_dump(mode="json", exclude={"measured"}, exclude_none=True),
        "broker": next(iter(workers.values())).broker,
    }


def _rendered(plan: NoScopePlan, seed: int, run: BenchRun) -> Path:
    run.step(f"rendering the drive {seed}")
    return fixed_camera_bag(seed, plan.frames, lambda: None)


def _settings(plan: NoScopePlan, bags: Sequence[Path], run: BenchRun) -> RigSettings:
    """Reads the thresholds, and computes the answers of the reference network.

    Raises:
        BenchError: there are no thresholds for the model.
        SkylaneError: the thresholds are for other models.
    """
    file = plan.tuning or shipped_tuning(plan.model)
    if file is None:
        raise BenchError(f"no thresholds for {plan.model}: make them with 'skylane model tune-gate', and give --tuning")
    tuning = read_tuning(file)
    repository = Repository(plan.models)
    with ModelLoader(repository).open(plan.model) as model:
        tuning.check_reference(plan.model, model.card.sha256, file)
        answers: list[Path] = []
        for bag in bags:
            show = partial(_show_progress, run, bag.name)
            answers += answer_files(bag, plan.models, model, plan.frames, show)
    return RigSettings(
        plan.models, plan.model, plan.local_model, tuple(answers), plan.inference_ms, plan.frames, tuning, file
    )


def _show_progress(run: BenchRun, bag: str, image: int) -> None:
    run.step(f"answers of the reference network for {bag}: {image}")


def _reproduced(servers: Reproduction, drives: Sequence[JudgedDrive], count: int, number: int) -> SystemRun:
    return servers.play(drives[number], number, servers=count, reuse=True)


def _skylane(skylane: Skylane, drives: Sequence[JudgedDrive], number: int) -> SystemRun:
    return skylane.play(drives[number], number)


def _servers(count: int) -> str:
    return f"{count} server{'s' * (count > 1)}"


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


def _record(
    runs: Sequence[SystemRun], undistributed: Sequence[SystemRun], drives: Sequence[JudgedDrive]
) -> dict[str, Any]:
    """Describes the runs of a system, one per drive, and their means with 95 % intervals over the drives."""
    by_drive = []
    for run, plain, drive in zip(runs, undistributed, drives, strict=True):
        frames = len(drive.truth)
        accuracy = _accuracy(run, drive)
        by_drive.append(
            {
                "seconds": run.seconds,
                "hz": frames / run.seconds,
                "speed_up": plain.seconds / run.seconds,
                "requests": run.requests,
                "sent_share": run.requests / frames,
                "reused_share": run.origins.count(REUSED) / frames,
                "local_share": run.origins.count(LOCAL) / frames,
                "accuracy": accuracy,
                "loss_points": _accuracy(plain, drive) - accuracy,
                **run.parts_ms,
            }
        )
    keys = dict.fromkeys(key for each in by_drive for key in each)
    means = {key: _mean([each[key] for each in by_drive if key in each]) for key in keys}
    means["speed_up"] = _mean([each["speed_up"] for each in by_drive], geometric=True)
    seconds = [sum(run.seconds for run in each) for each in (undistributed, runs)]
    return {"by_drive": by_drive, "means": means, "total_speed_up": seconds[0] / seconds[1]}


def _mean(values: Sequence[float], *, geometric: bool = False) -> dict[str, float | None]:
    """Returns the mean of the drives with its 95 % interval, None for a single drive.

    `geometric`: for ratios, which differ by factors between the drives.
    """
    found = mean_of_runs(np.log(values) if geometric else values)
    ends = {key: float(np.exp(each)) if geometric else each for key, each in asdict(found).items()}
    return {key: None if math.isnan(each) else each for key, each in ends.items()}


def _accuracy(run: SystemRun, drive: JudgedDrive) -> float:
    """The share of right answers, in points."""
    right = sum(answer == true for answer, true in zip(run.answers, drive.truth, strict=True))
    return 100 * right / len(drive.truth)


def _targets(record: Mapping[str, Any]) -> dict[str, Any]:
    means = {key: each["value"] for key, each in record["means"].items()}
    return {
        "sent_share": {"limit": 1 / SPEED_UP, "met": means["sent_share"] <= 1 / SPEED_UP},
        "loss_points": {"limit": MAX_LOSS_POINTS, "met": means["loss_points"] <= MAX_LOSS_POINTS},
        "total_speed_up": {"limit": SPEED_UP, "met": record["total_speed_up"] >= SPEED_UP},
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan, systems = result["plan"], result["systems"]
    yield result_table(
        f"{plan['frames']} frames a drive, {len(result['drives'])} drives, {plan['inference_ms']:g} ms an inference",
        {
            "system": "<",
            "s": ".1f",
            "all drives": ".2f",
            "by drive": "",
            "N_R": ".0f",
            "accuracy, %": ".1f",
            "points lost": "",
        },
        [
            (
                name,
                each["means"]["seconds"]["value"],
                each["total_speed_up"],
                interval(each["means"]["speed_up"], 2),
                *(each["means"][key]["value"] for key in ("requests", "accuracy")),
                interval(each["means"]["loss_points"], 2),
            )
            for name, each in systems.items()
        ],
        "Means with 95 % intervals over the drives. Speed-up: of all drives together, and the geometric mean of the drives. The "
        "reproduction was written for this comparison.",
    )
    yield result_table(
        "Median times of a frame before it may be sent, and means of a request, ms",
        {"system": "<", **{time.removesuffix("_ms").replace("_", " "): ".1f" for time in _TIMES}},
        [
            (name, *(each["means"].get(time, {"value": None})["value"] for time in _TIMES))
            for name, each in systems.items()
        ],
    )
    name = f"Skylane, {_workers(min(plan['servers']))}"
    yield result_table(
        f"By drive: {name}",
        {
            "drive": "<",
            "vehicle, %": ".0f",
            "changes": "",
            "sent, %": ".1f",
            "reused, %": ".1f",
            "local, %": ".1f",
            "loss": ".2f",
            "speed-up": ".2f",
        },
        [
            (
                drive["bag"],
                100 * drive["vehicle_share"],
                drive["changes"],
                *(100 * each[key] for key in ("sent_share", "reused_share", "local_share")),
                each["loss_points"],
                each["speed_up"],
            )
            for drive, each in zip(result["drives"], systems[name]["by_drive"], strict=True)
        ],
    )
    means, targets = systems[name]["means"], result["targets"]
    judged = {
        key: interval_text(targets[key]["met"], targets[key]["limit"], **means[key])
        for key in ("sent_share", "loss_points")
    }
    yield (
        f"{name}: {interval(means['sent_share'], 3)} of the frames are sent (target ≤ {1 / SPEED_UP:.3f}, "
        f"{judged['sent_share']}), {interval(means['loss_points'], 2)} points of accuracy are lost "
        f"(≤ {MAX_LOSS_POINTS:g}, {judged['loss_points']}); all drives together take "
        f"{systems[name]['total_speed_up']:.2f} times as long undistributed (≥ {SPEED_UP}, "
        f"{target_text(targets['total_speed_up']['met'])})"
    )


def interval(estimate: Mapping[str, float | None], digits: int) -> str:
    """A mean with its 95 % interval, such as "5.83 (5.61 to 6.05)"."""
    text = f"{estimate['value']:.{digits}f}"
    if estimate["low"] is None:
        return text
    return f"{text} ({estimate['low']:.{digits}f} to {estimate['high']:.{digits}f})"


noscope = options.bench_command("noscope", NoScopePlan, measure, _tables, json=options.JSON_FILE)
