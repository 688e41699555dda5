"""`python -m bench failover`: the cost of a worker that dies or stops, for the vehicles, with and without retries."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.logs.frame_accounting import FrameAccounts, longest_gap_ms, outcome_sum, recovery_ms
from analysis.statistics.samples import spread
from bench import harness
from bench.harness import BenchRun, alternating
from ops.broker.broker import Broker
from ops.processes.child import cli_flags
from ops.processes.null_worker import MODEL, NullWorkerProcess, NullWorkerSettings
from ops.processes.worker_process import Worker
from ops.study.fleet import Fleet
from rosbag_tools.drive.recording import sample_bag
from shared import clock
from shared.models.repository import default_root
from shared.runlog.latency_log import LogError, Outcome, read_rows
from shared.terminal_table import Table, result_table

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
_SOURCE_FRAMES = 40
_WIDTH, _HEIGHT = 484, 304
_RUN_LIMIT_S = 300.0
_REPLY_TIMEOUT_S = 5.0
_FAULT_AT = 1 / 3  # Share of the first vehicle's frames before the fault.


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """Settings of the benchmark."""

    model: str | None = harness.option(help="Model of the workers. [none: they wait --think-ms and reply]")
    think_ms: float = harness.number(100.0, 0, None, "Inference time of a worker without a model.")
    vehicles: int = harness.number(4, 1, 64, "Number of vehicles.")
    workers: int = harness.number(3, 2, 16, "Number of workers.")
    rounds: int = harness.rounds(2, 100)
    frames: int = harness.frames(60, 10, "Frames per vehicle and run.")
    window: int = harness.number(2, 1, 64, "Unanswered frames per vehicle.")


@dataclass(slots=True)
class FailoverStatistics:
    """The results of all runs with the same fault, with or without retries."""

    accounts: FrameAccounts = field(default_factory=FrameAccounts)
    recovery_ms: list[float] = field(default_factory=list)
    retry_wait_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)  # Longest time between replies, by vehicle.

    def add(self, folder: Path, fault_ns: int) -> None:
        """Adds the run of one vehicle; `fault_ns`: time of the fault."""
        self.accounts.add(folder)
        answered = [row for row in read_rows(folder) if row["outcome"] == Outcome.ANSWERED]
        self.retry_wait_ms += [wait_ms for row in answered if (wait_ms := float(row["retry_wait_ms"])) > 0]
        self.recovery_ms += recovery_ms(answered, [fault_ns])
        self.gap_ms.append(longest_gap_ms(answered))

    def record(self) -> dict[str, Any]:
        """The results as JSON output contains them."""
        accounts = self.accounts
        return {
            "read": accounts.read,
            "outcomes": accounts.by_outcome,
            "reasons": dict(accounts.reasons),
            "unaccounted": accounts.unaccounted,
            "accepted_twice": accounts.accepted_twice,
            "broken_promises": len(accounts.broken_promises),
            "retried": accounts.retried,
            "retry_won": accounts.retry_won,
            "duplicates_removed": accounts.ignored["duplicate"],
            "recovered": len(self.recovery_ms),
            "recovery_ms": spread(self.recovery_ms) if self.recovery_ms else None,
            "retry_wait_ms": spread(self.retry_wait_ms) if self.retry_wait_ms else None,
            "longest_gap_ms": spread(self.gap_ms),
        }


def measure(plan: FailoverPlan, run: BenchRun) -> dict[str, Any]:
    """Kill or stop a worker while vehicles play, in alternating runs with and without retries."""
    source = sample_bag(_SOURCE_FRAMES, width=_WIDTH, height=_HEIGHT)
    statistics = {(fault, retries): FailoverStatistics() for fault in FAULTS for retries in (True, False)}
    broker = run.enter_context(Broker.start())
    run.step("starting the workers without a fault")
    for number in range(2, plan.workers + 1):
        run.enter_context(_worker(plan, broker.url, number))
    for number, (fault, retries) in alternating(list(statistics), plan.rounds):
        run.step(f"round {number + 1} of {plan.rounds}: {_title(fault, retries)}")
        folder = run.folder / f"{number}-{fault}-{retries}"
        fault_ns = _play(plan, broker.url, source, folder, FAULTS[fault], retries=retries)
        for vehicle in range(1, plan.vehicles + 1):
            statistics[fault, retries].add(folder / f"vehicle-{vehicle}", fault_ns)
    return {
        "vehicles": plan.vehicles,
        "workers": plan.workers,
        "worker": plan.model or f"no model: it waits {plan.think_ms:g} ms and replies",
        "rounds": plan.rounds,
        "window": plan.window,
        "runs": [
            {"fault": fault, "retries": retries, **found.record()} for (fault, retries), found in statistics.items()
        ],
        "broker": broker.description,
    }


def _play(plan: FailoverPlan, broker: str, source: Path, folder: Path, fault: signal.Signals, *, retries: bool) -> int:
    """Plays one run in which a worker breaks after a third of the first vehicle's frames; returns the time of the fault."""
    folder.mkdir(parents=True)
    options = {"broker": broker, "model": plan.model or MODEL, "frames": plan.frames, "window": plan.window}
    flags = cli_flags(**options, loop=True, closed_loop=True, answer_timeout=_REPLY_TIMEOUT_S)
    flags.append("--retry" if retries else "--no-retry")
    fault_ns: list[int] = []
    with _worker(plan, broker, 1) as pid, Fleet(plan.vehicles, source, folder, [flags] * plan.vehicles) as fleet:

        def break_worker() -> None:
            if not fault_ns and fleet.vehicles[0].closed() >= plan.frames * _FAULT_AT:
                fault_ns.append(clock.now_ns())
                os.kill(pid, fault)

        fleet.wait(_RUN_LIMIT_S, break_worker)
        if not fault_ns:
            raise LogError("the run ended before the fault: use more --frames")
    return fault_ns[0]


@contextmanager
def _worker(plan: FailoverPlan, broker: str, number: int) -> Iterator[int]:
    """Runs a worker and yields its process id; a stopped worker is continued at the end of the block."""
    name = f"worker-{number}"
    process = (
        Worker(broker, models=default_root(), model=plan.model, name=name)
        if plan.model
        else NullWorkerProcess(broker, NullWorkerSettings(name, MODEL, _HEIGHT, _WIDTH, plan.think_ms))
    )
    with process as worker:
        try:
            yield worker.pid
        finally:
            os.kill(worker.pid, signal.SIGCONT)  # The id stays valid until the process has been waited for.


def _title(fault: str, retries: bool) -> str:  # noqa: FBT001 (the title names it)
    return f"{fault}, {'with retries' if retries else 'without'}"


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    yield (
        f"{result['vehicles']} vehicles with {result['window']} unanswered frames each, {result['workers']} workers of "
        f"which one breaks, {result['rounds']} rounds; worker: {result['worker']}"
    )
    runs = result["runs"]
    counts = ("read", "unaccounted", "accepted_twice", "broken_promises", "retried", "retry_won", "duplicates_removed")
    rows = [(name.replace("_", " "), *(run[name] for run in runs)) for name in counts]
    rows += [(name, *(run["outcomes"][name] for run in runs)) for name in ("answered", "lost")]
    for name in ("recovery_ms", "retry_wait_ms", "longest_gap_ms"):
        for percentile in ("median", "p95"):
            title = f"{name.removesuffix('_ms').replace('_', ' ')}, ms, {percentile}"
            rows.append((title, *(f"{run[name][percentile]:.0f}" if run[name] else "" for run in runs)))
    titles = (_title(run["fault"], run["retries"]) for run in runs)
    yield result_table("One worker breaks", {"": "<", **dict.fromkeys(titles, "")}, rows)
    for run in runs:
        yield f"{_title(run['fault'], run['retries'])}: {outcome_sum(run)}"
        if run["reasons"]:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(run["reasons"].items()))
            yield f"  not answered: {reasons}"
    yield (
        "recovery: from the fault, or from the first attempt to send a frame if that was later, to the mask of the second "
        "attempt; longest gap: time between two replies, by vehicle"
    )


failover = harness.bench_command("failover", FailoverPlan, measure, _tables)
