"""`skylane bench failover`: what a worker that dies, or stands still, costs the vehicles; with retries and without."""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.harness.frame_accounting import FrameAccounts
from bench.harness.output import machine_line
from bench.harness.recovery_time import longest_gap_ms, recovery_ms
from bench.harness.sample_bag import sample_bag
from bench.harness.samples import spread
from bench.load.null_worker import MODEL, NullWorkerProcess, NullWorkerSettings
from bench.load.worker_process import Worker
from bench.study.execution.fleet import Fleet
from cloud.models.repository import default_root
from shared import clock
from shared.broker.broker import Broker
from shared.flags import FiniteRange
from shared.runlog.latency_log import CSV_NAME, LogError, Outcome, read_rows
from shared.runtime.machine import machine
from shared.terminal_table import Table

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
_SOURCE_FRAMES = 40
_WIDTH, _HEIGHT = 484, 304
_LIMIT_S = 300.0
_ANSWER_TIMEOUT_S = 5.0
_FAULT_AT = 1 / 3  # Of a vehicle's frames.


@dataclass(frozen=True, slots=True)
class Plan:
    """How it is measured."""

    model: str | None = None  # None: workers that think nothing and wait instead.
    vehicles: int = 4
    workers: int = 3
    rounds: int = 2
    frames: int = 60  # A vehicle and run.
    think_ms: float = 100.0  # Of a worker without a model.
    window: int = 2  # Of a vehicle, always full: every frame is sent, so that each that is lost shows.


@dataclass(slots=True)
class Figures:
    """What the runs of one kind came to."""

    accounts: FrameAccounts = field(default_factory=FrameAccounts)
    recovery_ms: list[float] = field(default_factory=list)
    retry_wait_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)  # Of each vehicle: the longest time without an answer.

    def add(self, folder: Path, fault_ns: int) -> None:
        """Take a vehicle's run in; the fault was at `fault_ns`."""
        self.accounts.add(folder)
        answered = [row for row in read_rows(folder) if row["outcome"] == Outcome.ANSWERED]
        for row in answered:
            if (wait_ms := float(row["retry_wait_ms"])) > 0:
                self.retry_wait_ms.append(wait_ms)
        self.recovery_ms += recovery_ms(answered, [fault_ns])
        self.gap_ms.append(longest_gap_ms(answered))

    def told(self) -> dict[str, Any]:
        """As `--json` prints it."""
        accounts = self.accounts
        return {
            "read": accounts.read,
            "outcomes": {outcome.value: accounts.outcomes[outcome] for outcome in Outcome},
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


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Break a worker in every run; runs with and without retries alternate. Returns what `--json` prints.

    Raises:
        SkylaneError: broker, worker or vehicle failed where it should not.
    """
    source = sample_bag(_SOURCE_FRAMES, width=_WIDTH, height=_HEIGHT)
    figures = {(fault, retries): Figures() for fault in FAULTS for retries in (True, False)}
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start())
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-failover-"))
        on_step("starting the workers that stay whole")
        for number in range(2, plan.workers + 1):
            stack.enter_context(_worker(plan, broker.url, number))
        for number in range(plan.rounds):
            for place, (fault, retries) in enumerate(sorted(figures, reverse=bool(number % 2))):
                folder = Path(scratch) / f"{number}-{place}"
                on_step(f"round {number + 1} of {plan.rounds}: {fault}, {_mode(retries)}")
                fault_ns = _play(plan, broker.url, source, folder, FAULTS[fault], retries=retries)
                for vehicle in range(1, plan.vehicles + 1):
                    figures[fault, retries].add(folder / f"vehicle-{vehicle}", fault_ns)
        description = broker.description
    return {
        "vehicles": plan.vehicles,
        "workers": plan.workers,
        "worker": plan.model or f"no model: it waits {plan.think_ms:g} ms and answers",
        "rounds": plan.rounds,
        "window": plan.window,
        "runs": [{"fault": fault, "retries": on, **found.told()} for (fault, on), found in figures.items()],
        "broker": description,
        "machine": machine(),
    }


def _play(plan: Plan, broker: str, source: Path, folder: Path, fault: signal.Signals, *, retries: bool) -> int:
    """One run: a worker is broken after a third of the first vehicle's frames; when that was."""
    folder.mkdir(parents=True)
    flags = ["--broker", broker, "--model", plan.model or MODEL, "--loop", "--frames", str(plan.frames)]
    flags += ["--closed-loop", "--window", str(plan.window)]
    flags += ["--answer-timeout", str(_ANSWER_TIMEOUT_S), "--retry" if retries else "--no-retry"]
    broken_ns: list[int] = []
    with ExitStack() as stack:
        pid = stack.enter_context(_worker(plan, broker, 1))
        fleet = stack.enter_context(Fleet(plan.vehicles, source, folder, [flags] * plan.vehicles))

        def break_one() -> None:
            if not broken_ns and _rows(folder / "vehicle-1" / CSV_NAME) >= plan.frames * _FAULT_AT:
                broken_ns.append(clock.now_ns())
                os.kill(pid, fault)

        fleet.wait(_LIMIT_S, break_one)
        if not broken_ns:
            raise LogError("the run was over before a worker could be broken: use more --frames")
    return broken_ns[0]


@contextmanager
def _worker(plan: Plan, broker: str, number: int) -> Iterator[int]:
    """A worker's process, by its number; one that was made to stand still goes on to its end."""
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
            os.kill(worker.pid, signal.SIGCONT)  # Whatever became of it, it is ours until it has been waited for.


def _rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def _mode(retries: bool) -> str:  # noqa: FBT001 (what it names)
    return "with retries" if retries else "without"


@click.command()
@click.option("--model", help="A model for the workers to run. [none: they wait --think-ms and answer]")
@click.option("--think-ms", type=FiniteRange(0), default=100.0, show_default=True)
@click.option("--vehicles", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--workers", type=click.IntRange(2, 16), default=3, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=2, show_default=True)
@click.option("--frames", type=click.IntRange(10, 100_000), default=60, show_default=True, help="A vehicle and run.")
@click.option("--window", type=click.IntRange(1, 64), default=2, show_default=True, help="Of a vehicle.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def failover(*, as_json: bool, **plan: Any) -> None:
    """Kill a worker, or have it stand still, while vehicles play; with and without retries, in alternating runs."""
    with Console(stderr=True).status("preparing") as status:
        result = measure(Plan(**plan), status.update)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{result['vehicles']} vehicles with {result['window']} frames under way each, {result['workers']} workers of which "
        f"one breaks, {result['rounds']} rounds; worker: {result['worker']}",
        highlight=False,
    )
    runs: Sequence[Mapping[str, Any]] = result["runs"]
    table = Table(title="One worker breaks")
    table.add_column("")
    for run in runs:
        table.add_column(f"{run['fault']}, {_mode(run['retries'])}", justify="right")
    for name in (
        "read",
        "unaccounted",
        "accepted_twice",
        "broken_promises",
        "retried",
        "retry_won",
        "duplicates_removed",
    ):
        table.add_row(name.replace("_", " "), *(str(run[name]) for run in runs))
    for name in ("answered", "lost"):
        table.add_row(name, *(str(run["outcomes"][name]) for run in runs))
    for name in ("recovery_ms", "retry_wait_ms", "longest_gap_ms"):
        for of in ("median", "p95"):
            label = f"{name.removesuffix('_ms').replace('_', ' ')}, ms, {of}"
            table.add_row(label, *(f"{run[name][of]:.0f}" if run[name] else "" for run in runs))
    console.print(table)
    for run in runs:
        sums = " + ".join(f"{outcome} {count}" for outcome, count in run["outcomes"].items())
        console.print(f"{run['fault']}, {_mode(run['retries'])}: read {run['read']} = {sums}", highlight=False)
        if run["reasons"]:
            told = ", ".join(f"{reason} {count}" for reason, count in sorted(run["reasons"].items()))
            console.print(f"  not answered: {told}", highlight=False)
    console.print(
        "recovery: from the fault, or from when a frame was first sent if that was later, to the mask that a second "
        "attempt brought; longest gap: without an answer, of each vehicle",
        highlight=False,
    )
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)
