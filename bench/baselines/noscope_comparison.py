"""`python -m bench baselines noscope`: compares Skylane with a reproduction of Distributed NoScope, drive by drive.

All systems answer "is there a vehicle?" for the same frames of a fixed camera, with the same networks and thresholds. The
undistributed reproduction asks the reference network about every frame, on one server.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.logs.run_log import load_run
from analysis.statistics.bootstrap import percentile_interval, resampled_sums
from analysis.statistics.description import mean_of_runs
from bench import harness
from bench.harness import BenchRun, alternating, interval_verdict, verdict_text
from cloud.models.loader import ModelLoader
from edge.sinks.jsonl import RESULTS_NAME
from modelling.evaluation.bag_images import (
    BOXES,
    TimestampMatcher,
    check_given_once,
    images_with_boxes,
    labelled_camera,
    truth_of,
)
from ops.broker.broker import Broker
from ops.processes.child import BenchError, Child
from ops.processes.fixed_time import known_answers_file
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.playback import PlaybackSettings
from ops.processes.vehicle_process import VehicleProcess
from rosbag_tools.drive.recording import sample_bag
from rosbag_tools.drive.scene import Box
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.records import Message
from shared.flags import WholeRange
from shared.models.repository import Repository
from shared.reuse.tuning import Tuning, read_tuning, shipped_tuning
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS, WHERE
from shared.runlog.mean_interval import MIN_RUNS
from shared.stages import Stage
from shared.terminal_table import Table, result_table

SPEED_UP = 5.52  # The original's on 500 frames: 784 s undistributed, 142 s with everything.
MAX_LOSS_POINTS = 1.0
UNDISTRIBUTED = "undistributed reproduction"
JUDGED_SEEDS = (930_001, 930_002, 930_003, 930_004, 930_005)  # Of no drive for training, validation or tuning.
WIDTH, HEIGHT = 968, 608  # Half of the default camera: 5,000 frames of it would take an hour to render.
CODECS = ("raw", "jpeg")  # The reproduction sends raw pixels, Skylane's vehicle JPEG.
REFERENCE, LOCAL, REUSED = "reference", "local", "reused"  # The origins of an answer.
STEPS = ("detector_ms", "specialised_ms")  # The steps before a frame may be sent.

_STEP_STAGES = (Stage.GATED, Stage.INFERRED_LOCALLY)
# The terms of the original's formula, and the parts of Skylane's latency that make up each.
_FORMULA: Mapping[str, Sequence[str]] = {
    "network_ms": [part for part in PARTS if WHERE[part] == "link"],
    "client_queue_ms": [part for part in PARTS if WHERE[part] == "edge"],
    "server_queue_ms": [part for part in PARTS if WHERE[part] == "cloud" and part != Stage.INFERRED],
    "compute_ms": [Stage.INFERRED],
}
_TIMES = (*STEPS, *_FORMULA)
_ORIGINS = {Outcome.ANSWERED: REFERENCE, Outcome.ANSWERED_LOCALLY: LOCAL, Outcome.REUSED: REUSED}
_ANSWERS = Path("runs") / "answers"
_CHILD = "bench.baselines.noscope_reproduction"
_PLAY_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class NoScopePlan:
    """Settings of the comparison."""

    seeds: tuple[int, ...] = harness.option(
        JUDGED_SEEDS,
        flag="--seed",
        multiple=True,
        type=WholeRange(0),
        help=f"Seed of a drive to play (repeatable). [{JUDGED_SEEDS[0]} to {JUDGED_SEEDS[-1]}]",
    )
    bags: tuple[Path, ...] = harness.option(
        (),
        flag="--bag",
        multiple=True,
        type=harness.EXISTING_PATH,
        help="Bag with true boxes to play instead of the drives (repeatable).",
    )
    frames: int = harness.frames(500, text="Frames of each drive.")
    servers: tuple[int, ...] = harness.option(
        (1, 4),
        flag="--servers",
        multiple=True,
        type=WholeRange(1, 32),
        help="Number of servers and of workers (repeatable). [1 and 4]",
    )
    inference_ms: float = harness.number(100.0, 0.0, 60_000.0, "Time that the reference network takes for an image.")
    models: Path = harness.models()
    model: str = harness.option("car-reference", show_default=True, help="Name of the reference network.")
    local_model: str = harness.option("car-tiny", show_default=True, help="Name of the specialised network.")
    tuning: Path | None = harness.option(
        type=harness.EXISTING_PATH, help="Tuning file with the thresholds. [the shipped one of the model]"
    )


@dataclass(frozen=True, slots=True)
class JudgedDrive:
    """A bag with the true answer to "is there a vehicle?" for each frame that is played, 0 or 1."""

    bag: Path
    truth: tuple[int, ...]

    @property
    def vehicle_share(self) -> float:
        """The share of frames with a vehicle."""
        return sum(self.truth) / len(self.truth)

    @property
    def changes(self) -> int:
        """How often the true answer changes from a frame to the next."""
        return sum(one != other for one, other in zip(self.truth, self.truth[1:], strict=False))


def read_drive(bag: Path, frames: int) -> JudgedDrive:
    """Reads the true answers of the first frames of a bag.

    Raises:
        BenchError: the bag has fewer frames with true boxes.
        SkylaneError: it cannot be read, or has no true boxes.
    """
    camera, boxes, _ = labelled_camera(bag, None, BOXES)
    matcher: TimestampMatcher[Message, list[Box]] = TimestampMatcher()
    truth: list[int] = []
    with Bag(bag) as opened:
        for message, true in images_with_boxes(opened, camera, boxes, matcher):
            truth.append(truth_of(true, decode(message)[0].shape[0]))
            if len(truth) == frames:
                return JudgedDrive(bag, tuple(truth))
    raise BenchError(f"{bag} has {len(truth)} frames with true boxes, fewer than {frames}: set --frames {len(truth)}")


@dataclass(frozen=True, slots=True)
class SystemRun:
    """One run of a system over a drive."""

    seconds: float  # The time from the first frame to the last answer.
    answers: tuple[int, ...]  # The label id of each frame.
    origins: tuple[str, ...]  # The origin of each frame's answer.
    # Medians of STEPS over the frames that passed one, means of the formula's terms over the requests.
    parts_ms: Mapping[str, float]

    @property
    def requests(self) -> int:
        """The number of frames that the reference network answered: N_R."""
        return self.origins.count(REFERENCE)


class Reproduction:
    """The reproduced system with its servers; the processes end with `run`."""

    def __init__(self, run: BenchRun, plan: NoScopePlan, tuning: Tuning, answers: Sequence[Path], servers: int) -> None:
        """Starts the servers."""
        self._plan = plan
        self._tuning = tuning.model_dump(mode="json")
        served = {"models": plan.models, "model": plan.model, "inference_ms": plan.inference_ms}
        served |= {"answers": [*map(str, answers)]}
        children = [run.enter_context(Child(_CHILD, served)) for _ in range(servers)]
        self._ports = [child.wait()["port"] for child in children]

    def play(self, drive: JudgedDrive, seed: int, *, servers: int, reuse: bool) -> SystemRun:
        """Plays a drive with the first `servers` servers; `reuse`: with detector and specialised network."""
        plays = {name: getattr(self._plan, name) for name in ("frames", "models", "model", "local_model")}
        with Child(_CHILD, {"bag": drive.bag, **plays, "tuning": self._tuning}) as client:
            client.wait()
            found = client.ask({"ports": self._ports[:servers], "reuse": reuse, "seed": seed})
        parts = {part: found[part] for part in _TIMES if part in found}
        return SystemRun(found["seconds"], tuple(found["answers"]), tuple(found["origins"]), parts)


class Skylane:
    """Skylane's broker and workers, which end with `run`, and its vehicle node."""

    def __init__(self, run: BenchRun, plan: NoScopePlan, tuning: Path, answers: tuple[Path, ...], workers: int) -> None:
        """Starts broker and workers; `tuning`: the file with the thresholds."""
        self._run = run
        self._plan = plan
        self._tuning = tuning
        self._workers = workers
        self._broker = run.enter_context(Broker.start())
        for number in range(workers):
            served = NullWorkerSettings(
                worker=f"worker-{number}",
                model=plan.model,
                models=plan.models,
                answers=answers,
                think_ms=plan.inference_ms,
            )
            run.enter_context(NullWorkerProcess(self._broker.url, served))

    @property
    def broker(self) -> str:
        """Describes the broker."""
        return self._broker.description

    def play(self, drive: JudgedDrive, number: int) -> SystemRun:
        """Plays a drive with gate, local model and cascade; `number` makes the folder of the run unique.

        Raises:
            SkylaneError: the vehicle node failed, or a frame has no answer.
        """
        plan = self._plan
        folder = self._run.folder / f"skylane-{self._workers}-{number}"
        options = {
            "--broker": self._broker.url,
            "--model": plan.model,
            "--models": plan.models,
            "--frames": plan.frames,
            "--window": self._workers,
            "--gate": "mse",
            "--gate-threshold": "auto",
            "--local-model": plan.local_model,
            "--tuning": self._tuning,
            "--sink": "jsonl",
        }
        flags = ["--closed-loop", "--cascade", *(str(word) for option in options.items() for word in option)]
        with VehicleProcess(drive.bag, folder, flags) as vehicle:
            vehicle.wait(_PLAY_LIMIT_S)
            vehicle.end()
        return _read_run(folder)


def measure(plan: NoScopePlan, run: BenchRun) -> dict[str, Any]:
    """Compare with Distributed NoScope, as reproduced here.

    It has a difference detector, a small network, and several servers.
    """
    check_given_once(plan.bags)
    bags = plan.bags or tuple(_rendered(plan, seed, run) for seed in plan.seeds)
    drives = [read_drive(bag, plan.frames) for bag in bags]
    file = plan.tuning or shipped_tuning(plan.model)
    if file is None:
        raise BenchError(f"no thresholds for {plan.model}: make them with 'skylane model tune-gate', and give --tuning")
    tuning = read_tuning(file)
    answers = _answers(plan, bags, run, lambda sha256: tuning.check_reference(plan.model, sha256, file))
    run.step("starting servers and workers")
    servers = Reproduction(run, plan, tuning, answers, max(plan.servers))
    play = servers.play
    systems: dict[str, Callable[[JudgedDrive, int], SystemRun]] = {UNDISTRIBUTED: partial(play, servers=1, reuse=False)}
    for count in plan.servers:
        skylane = Skylane(run, plan, file, answers, count)
        systems[f"reproduction, {_counted(count, 'server')}"] = partial(play, servers=count, reuse=True)
        systems[_skylane_name(count)] = skylane.play
    runs: dict[str, list[SystemRun]] = {name: [] for name in systems}
    for number, name in alternating(list(systems), len(drives)):
        run.step(f"drive {number + 1} of {len(drives)}: {name}")
        runs[name].append(systems[name](drives[number], number))
    records = {name: _record(each, runs[UNDISTRIBUTED], drives) for name, each in runs.items()}
    return {
        "systems": records,
        "drives": [
            {"bag": drive.bag.name, "vehicle_share": drive.vehicle_share, "changes": drive.changes} for drive in drives
        ],
        "targets": _targets(records[_skylane_name(min(plan.servers))]),
        "plan": {key: value for key, value in asdict(plan).items() if key not in ("bags", "models", "tuning")},
        "tuning": tuning.model_dump(mode="json", exclude={"measured"}, exclude_none=True),
        "broker": skylane.broker,
    }


def _rendered(plan: NoScopePlan, seed: int, run: BenchRun) -> Path:
    """Returns the drive of a fixed camera with the default traffic, which is rendered if it does not exist."""
    run.step(f"rendering the drive {seed}")
    return sample_bag(plan.frames, lambda: None, width=WIDTH, height=HEIGHT, seed=seed, static_camera=True)


def _answers(
    plan: NoScopePlan, bags: Sequence[Path], run: BenchRun, check_hash: Callable[[str], None]
) -> tuple[Path, ...]:
    """Returns the files with the answers of the reference network, which are computed if they do not exist.

    Raises:
        SkylaneError: the thresholds are for other models.
    """
    answers = []
    with ModelLoader(Repository(plan.models)).open(plan.model) as model:
        check_hash(model.card.sha256)
        for bag in bags:

            def show(image: int, name: str = bag.name) -> None:
                run.step(f"answers of the reference network for {name}: {image}")

            for codec in CODECS:
                played = PlaybackSettings(bag, plan.models, model.card.name, codec, frames=plan.frames)
                answers.append(known_answers_file(played, model, _ANSWERS, show))
    return tuple(answers)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"


def _skylane_name(workers: int) -> str:
    return f"Skylane, {_counted(workers, 'worker')}"


def _read_run(folder: Path) -> SystemRun:
    frames = load_run(folder).frames.sort_values("frame_index")
    missing = frames[~frames["outcome"].isin(_ORIGINS)]
    if len(missing):
        raise BenchError(f"{len(missing)} of {len(frames)} frames have no answer: {missing['reason'].iloc[0]}")
    ended_ns = frames["t_due_ns"] + frames["total_ms"] * 1e6
    lines = map(json.loads, (folder / RESULTS_NAME).read_text(encoding="utf-8").splitlines())
    answers = {line["index"]: line["classes"][0]["id"] for line in lines}
    # The median, because a frame that was compared again after it had waited for room has a longer stage.
    parts_ms = {step: frames[f"{stage}_ms"].median() for step, stage in zip(STEPS, _STEP_STAGES, strict=True)}
    sent = frames[frames["outcome"] == Outcome.ANSWERED]
    for part, names in _FORMULA.items():
        parts_ms[part] = sent[[f"{name}_ms" for name in names]].fillna(0).sum(axis=1).mean()
    return SystemRun(
        float(ended_ns.max() - frames["t_due_ns"].min()) / 1e9,
        tuple(answers[index] for index in frames["frame_index"]),
        tuple(_ORIGINS[Outcome(outcome)] for outcome in frames["outcome"]),
        {part: float(each_ms) for part, each_ms in parts_ms.items() if not math.isnan(each_ms)},
    )


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
    means = {key: _mean([each[key] for each in by_drive if key in each], share_of=_share_of(key)) for key in keys}
    means["speed_up"] = _mean([each["speed_up"] for each in by_drive], geometric=True)
    seconds = np.array([(plain.seconds, run.seconds) for plain, run in zip(undistributed, runs, strict=True)])
    total, drawn = seconds.sum(axis=0), resampled_sums(seconds, seed=0)
    ends = percentile_interval(drawn[:, 0] / drawn[:, 1], len(runs) - 1) if len(runs) >= MIN_RUNS else (None, None)
    return {
        "by_drive": by_drive,
        "means": means,
        "total_speed_up": float(total[0] / total[1]),
        "total_speed_up_interval": ends,
    }


def _share_of(key: str) -> float | None:
    """Returns the largest value of a share; None for what is not one."""
    return 1.0 if key.endswith("_share") else 100.0 if key == "accuracy" else None


def _mean(
    values: Sequence[float], *, geometric: bool = False, share_of: float | None = None
) -> dict[str, float | None]:
    """Returns the mean of the drives with its 95 % interval, None for fewer than three drives.

    `geometric`: for ratios, which differ by factors between the drives. `share_of`: as in `mean_interval`.
    """
    found = mean_of_runs(np.log(values) if geometric else values, share_of=share_of)
    ends = {key: float(np.exp(each)) if geometric else each for key, each in asdict(found).items()}
    return {key: None if math.isnan(each) else each for key, each in ends.items()}


def _accuracy(run: SystemRun, drive: JudgedDrive) -> float:
    """The share of right answers, in points."""
    right = sum(answer == true for answer, true in zip(run.answers, drive.truth, strict=True))
    return 100 * right / len(drive.truth)


def _targets(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each target and whether it is met; None if the interval over the drives does not decide."""
    sent, lost = ([record["means"][key][end] for end in ("low", "high")] for key in ("sent_share", "loss_points"))
    return {
        "sent_share": {"limit": 1 / SPEED_UP, "met": interval_verdict(*sent, most=1 / SPEED_UP)},
        "loss_points": {"limit": MAX_LOSS_POINTS, "met": interval_verdict(*lost, most=MAX_LOSS_POINTS)},
        "total_speed_up": {
            "limit": SPEED_UP,
            "met": interval_verdict(*record["total_speed_up_interval"], least=SPEED_UP),
        },
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
                _interval(each["means"]["speed_up"], 2),
                *(each["means"][key]["value"] for key in ("requests", "accuracy")),
                _interval(each["means"]["loss_points"], 2),
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
    name = _skylane_name(min(plan["servers"]))
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
    means = systems[name]["means"]
    judged = {key: verdict_text(each["met"]) for key, each in result["targets"].items()}
    yield (
        f"{name}: {_interval(means['sent_share'], 3)} of the frames are sent (target ≤ {1 / SPEED_UP:.3f}, "
        f"{judged['sent_share']}), {_interval(means['loss_points'], 2)} points of accuracy are lost "
        f"(≤ {MAX_LOSS_POINTS:g}, {judged['loss_points']}); all drives together take "
        f"{systems[name]['total_speed_up']:.2f} times as long undistributed (≥ {SPEED_UP}, "
        f"{judged['total_speed_up']})"
    )


def _interval(estimate: Mapping[str, float | None], digits: int) -> str:
    """A mean with its 95 % interval, such as "5.83 (5.61 to 6.05)"."""
    text = f"{estimate['value']:.{digits}f}"
    if estimate["low"] is None:
        return text
    return f"{text} ({estimate['low']:.{digits}f} to {estimate['high']:.{digits}f})"


noscope = harness.bench_command("noscope", NoScopePlan, measure, _tables)
