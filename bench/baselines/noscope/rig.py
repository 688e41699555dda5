"""The systems of the comparison: their servers or workers, and one run of each."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from bench.baselines.noscope.drives import JudgedDrive
from edge.sinks.jsonl import RESULTS_NAME
from ops.broker.broker import Broker
from ops.processes.child import BenchError, Child
from ops.processes.environment import BenchRun
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared.reuse.tuning import Tuning
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.latency_table import PARTS, WHERE
from shared.stages import Stage

REFERENCE, LOCAL, REUSED = "reference", "local", "reused"  # The origins of an answer.
LATENCY_PARTS = (
    "network_ms",
    "client_queue_ms",
    "server_queue_ms",
    "compute_ms",
)  # The terms of the original's formula.
STEPS = ("detector_ms", "specialised_ms")  # The steps before a frame may be sent.

_ORIGINS = {Outcome.ANSWERED: REFERENCE, Outcome.ANSWERED_LOCALLY: LOCAL, Outcome.REUSED: REUSED}


@dataclass(frozen=True, slots=True)
class RigSettings:
    """The settings that all systems share."""

    models: Path
    model: str
    local_model: str
    answers: tuple[Path, ...]
    inference_ms: float
    frames: int
    tuning: Tuning
    tuning_file: Path


@dataclass(frozen=True, slots=True)
class SystemRun:
    """One run of a system over a drive."""

    seconds: float  # The time from the first frame to the last answer.
    answers: tuple[int, ...]  # The label id of each frame.
    origins: tuple[str, ...]  # The origin of each frame's answer.
    parts_ms: Mapping[
        str, float
    ]  # Medians of STEPS over the frames that passed one, means of LATENCY_PARTS over the requests.

    @property
    def requests(self) -> int:
        """The number of frames that the reference network answered: N_R."""
        return self.origins.count(REFERENCE)


class Reproduction:
    """The reproduced system with its servers; the processes end with `run`."""

    def __init__(self, run: BenchRun, settings: RigSettings, servers: int) -> None:
        """Starts the servers."""
        self._run = run
        self._settings = settings
        self._ports = []
        for _ in range(servers):
            served = {"models": settings.models, "model": settings.model, "answers": [*map(str, settings.answers)]}
            served |= {"inference_ms": settings.inference_ms}
            server = run.enter_context(Child("bench.baselines.noscope.server", served))
            self._ports.append(server.wait()["port"])

    def play(self, drive: JudgedDrive, seed: int, *, servers: int, reuse: bool) -> SystemRun:
        """Plays a drive with the first `servers` servers; `reuse`: with detector and specialised network."""
        settings, tuning = self._settings, self._settings.tuning
        thresholds: dict[str, float | None] = {}
        if tuning.gate is not None:
            thresholds |= {"gate": tuning.gate.mse, "reuse_frames": tuning.gate.reuse_frames}
        if tuning.local is not None:
            thresholds |= tuning.local.model_dump(include={"c_low", "c_high", "temperature"})
        plays = {"bag": drive.bag, "frames": settings.frames, "models": settings.models, "model": settings.model}
        plays |= {"local_model": settings.local_model, "thresholds": thresholds}
        with Child("bench.baselines.noscope.system", plays) as system:
            system.wait()
            found = system.ask({"ports": self._ports[:servers], "reuse": reuse, "seed": seed})
        parts = {part: found[part] for part in (*STEPS, *LATENCY_PARTS) if part in found}
        return SystemRun(found["seconds"], tuple(found["answers"]), tuple(found["origins"]), parts)


class Skylane:
    """Skylane's broker and workers, which end with `run`, and its vehicle node."""

    def __init__(self, run: BenchRun, settings: RigSettings, workers: int) -> None:
        """Starts broker and workers."""
        self._run = run
        self._settings = settings
        self._workers = workers
        self._broker = run.enter_context(Broker.start())
        for number in range(workers):
            served = NullWorkerSettings(
                worker=f"worker-{number}",
                model=settings.model,
                models=settings.models,
                answers=settings.answers,
                think_ms=settings.inference_ms,
            )
            run.enter_context(NullWorkerProcess(self._broker.url, served))

    @property
    def broker(self) -> str:
        """Describes the broker."""
        return self._broker.description

    def play(self, drive: JudgedDrive, number: int) -> SystemRun:
        """Plays a drive with gate, local model and cascade; `number` makes the folder of the run unique.

        Raises:
            BenchError: the vehicle node failed, or a frame has no answer.
        """
        settings = self._settings
        folder = self._run.folder / f"skylane-{self._workers}-{number}"
        options = {
            "--broker": self._broker.url,
            "--model": settings.model,
            "--models": settings.models,
            "--frames": settings.frames,
            "--window": self._workers,
            "--gate": "mse",
            "--gate-threshold": "auto",
            "--local-model": settings.local_model,
            "--tuning": settings.tuning_file,
            "--sink": "jsonl",
            "--out": folder,
        }
        command = [sys.executable, "-P", "-m", "skylane", "edge", "play", str(drive.bag), "--closed-loop", "--cascade"]
        command += [str(word) for option in options.items() for word in option]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"the vehicle node failed: {done.stderr.strip() or done.stdout.strip()}")
        return _read_run(folder)


def _read_run(folder: Path) -> SystemRun:
    rows = sorted(read_rows(folder), key=lambda row: int(row["frame_index"]))
    missing = [row for row in rows if row["outcome"] not in _ORIGINS]
    if missing:
        raise BenchError(f"{len(missing)} of {len(rows)} frames have no answer: {missing[0]['reason']}")
    begin_ns = min(int(row["t_due_ns"]) for row in rows)
    end_ns = max(int(row["t_due_ns"]) + float(row["total_ms"]) * 1e6 for row in rows)
    lines = map(json.loads, (folder / RESULTS_NAME).read_text(encoding="utf-8").splitlines())
    answers = {line["index"]: line["classes"][0]["id"] for line in lines}
    return SystemRun(
        (end_ns - begin_ns) / 1e9,
        tuple(answers[int(row["frame_index"])] for row in rows),
        tuple(_ORIGINS[Outcome(row["outcome"])] for row in rows),
        _steps(rows) | _latency_parts([row for row in rows if row["outcome"] == Outcome.ANSWERED]),
    )


def _steps(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    durations_ms = {
        step: [float(row[f"{stage}_ms"]) for row in rows if row[f"{stage}_ms"]]
        for step, stage in zip(STEPS, (Stage.GATED, Stage.INFERRED_LOCALLY), strict=True)
    }
    # The median, because a frame that was compared again after it had waited for room has a longer stage.
    return {step: median(each) for step, each in durations_ms.items() if each}


def _latency_parts(sent: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Returns the terms of the original's formula, means over the frames that were sent."""
    parts: dict[str, list[str]] = {
        "network_ms": [part for part in PARTS if WHERE[part] == "link"],
        "client_queue_ms": [part for part in PARTS if WHERE[part] == "edge"],
        "server_queue_ms": [part for part in PARTS if WHERE[part] == "cloud" and part != Stage.INFERRED],
        "compute_ms": [Stage.INFERRED],
    }

    def mean(names: Sequence[str]) -> float:
        return fmean(sum(float(row[f"{name}_ms"] or 0) for name in names) for row in sent)

    return {part: mean(names) for part, names in parts.items()} if sent else {}
