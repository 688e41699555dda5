"""`skylane bench soak`: vehicles, workers, broker and links with random faults for a long time; lost frames and leaks."""

import csv
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.faults.chaos import Chaos, Deed
from bench.faults.rig.rig import Rig
from bench.faults.rig.site import Site
from bench.faults.rig.working_folder import place
from bench.harness import options
from bench.harness.frame_accounting import NO_MASKS, FrameAccounts
from bench.harness.output import machine_line, result_table
from bench.harness.process_log import MEASURES, ProcessHistory, ProcessLog
from shared.broker.mosquitto import mosquitto_version, require_mosquitto
from shared.flags import FiniteRange
from shared.runtime.machine import machine
from shared.terminal_table import Table

ROLES = ("broker", "worker", "vehicle", "link")
GROWTH_LIMITS = {"rss_bytes": 24e6, "fds": 2.0, "threads": 2.0}  # Growth of a long-lived process per hour.
_MIN_JUDGED_S = 600.0  # Slopes over a shorter time are shown, not judged: single steps of an allocator look steep.
_WARM_UP_S = 300.0  # Age of a process at which its slope begins; in a short soak, a third of the duration.
_PAUSE_S = (1.0, 6.0)  # Time between two faults.
_QUIET_S = 15.0  # Time without faults at the end, in which all nodes recover.
_BROKER_KILL_SHARE = 0.3  # Share of the time in which the broker may be killed; then its memory is observed.
_POLL_S = 0.5
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """Settings of a soak; the seed determines the faults."""

    seconds: float
    seed: int
    vehicles: int = options.number(3, 2, 16, "Number of vehicles.")
    workers: int = options.number(3, 2, 16, "Number of workers.")
    rate_hz: float = options.number(10.0, 0.5, 100, "Frame rate of each vehicle.")


@dataclass(frozen=True, slots=True)
class ResourceGrowth:
    """Resources of the processes of one role, and their growth in processes that lived for at least half of the time."""

    role: str
    processes: int
    long_lived: int
    most_rss_bytes: int | None
    judged: bool  # Whether the soak was long enough to compare the slopes with the limits.
    per_hour: dict[str, float | None]  # The steepest slope of each measure.

    @property
    def failures(self) -> list[str]:
        """Slopes above their limit, and slopes that are unknown because no process lived long enough."""
        return [
            f"the {self.role}'s {measure} rise by {'an unknown amount' if rise is None else f'{rise:,.0f}'} per hour "
            f"(limit {GROWTH_LIMITS[measure]:,.0f})"
            for measure, rise in self.per_hour.items()
            if self.judged and (rise is None or rise > GROWTH_LIMITS[measure])
        ]


@dataclass(frozen=True, slots=True)
class SoakResult:
    """The result of a soak."""

    plan: SoakPlan
    accounts: FrameAccounts
    deeds: tuple[Deed, ...]
    growths: tuple[ResourceGrowth, ...]
    broken: tuple[str, ...]  # Processes that ended by themselves.

    @property
    def failures(self) -> list[str]:
        """Violations of a guarantee; empty if all hold."""
        no_masks = () if self.accounts.masks_checked else (NO_MASKS,)
        return [
            *self.broken,
            *self.accounts.failures,
            *no_masks,
            *(failure for growth in self.growths for failure in growth.failures),
        ]

    def record(self) -> dict[str, Any]:
        """The result as JSON output contains it."""
        return {
            "plan": asdict(self.plan),
            "verdict": "FAILS" if self.failures else "holds",
            "failures": self.failures,
            "ledger": self.accounts.equation,
            "unaccounted": self.accounts.unaccounted,
            "accepted_twice": self.accounts.accepted_twice,
            "masks_checked": self.accounts.masks_checked,
            "masks_wrong": self.accounts.masks_wrong,
            "retried": self.accounts.retried,
            "ignored_answers": dict(self.accounts.ignored),
            "reasons": dict(self.accounts.reasons),
            "faults": dict(Counter(deed.fault for deed in self.deeds)),
            "growth": [asdict(growth) for growth in self.growths],
        }


def run_soak(plan: SoakPlan, folder: Path, on_step: Callable[[float, str], None]) -> SoakResult:
    """Runs a soak; `on_step` receives the seconds that have passed and the current step."""
    steps = ["starting"]
    begin_s = time.monotonic()

    def wait(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            on_step(time.monotonic() - begin_s, steps[-1])
            time.sleep(min(_POLL_S, left_s))

    with (
        place(folder, emptied=True),
        Rig(folder, plan.seed, steps.append) as rig,
        ProcessLog(folder / "processes.csv") as log,
    ):
        wait(0.0)
        site = Site(rig, log, vehicles=plan.vehicles, workers=plan.workers, rate_hz=plan.rate_hz, wait=wait)
        chaos = Chaos(site)
        begin_s = time.monotonic()
        faults_end_s = begin_s + plan.seconds - _QUIET_S
        while time.monotonic() < faults_end_s:
            steps.append("no fault")
            wait(rig.chance.uniform(*_PAUSE_S))
            passed_s = time.monotonic() - begin_s
            with site.noted():
                site.tend()
                chaos.strike(
                    most_s=max(0.0, faults_end_s - time.monotonic()),
                    may_kill_broker=passed_s < plan.seconds * _BROKER_KILL_SHARE,
                )
        steps.append("quiet at the end")
        with site.noted():
            site.tend()
        wait(max(0.0, begin_s + plan.seconds - time.monotonic()))
        steps.append("ending")
        wait(0.0)
        accounts = site.end()
    _write_faults(chaos.deeds, folder / "faults.csv")
    growths = tuple(measure_growth(role, log.histories, plan.seconds) for role in ROLES)
    return SoakResult(plan, accounts, tuple(chaos.deeds), growths, tuple(site.broken))


def measure_growth(role: str, histories: Sequence[ProcessHistory], seconds: float) -> ResourceGrowth:
    """Computes the growth of a role's processes in a soak of the given duration."""
    warm_up_s = min(_WARM_UP_S, seconds / 3)
    ours = [process for process in histories if process.role == role]
    long_lived = [process for process in ours if process.seconds >= seconds / 2]
    slopes = {
        measure: [
            rise * _HOUR_S for process in long_lived if (rise := process.slope(measure, after_s=warm_up_s)) is not None
        ]
        for measure in MEASURES
    }
    most = [rss for process in ours if (rss := process.peak("rss_bytes")) is not None]
    return ResourceGrowth(
        role,
        processes=len(ours),
        long_lived=len(long_lived),
        most_rss_bytes=max(most, default=None),
        judged=seconds - warm_up_s >= _MIN_JUDGED_S,
        per_hour={measure: max(rises, default=None) for measure, rises in slopes.items()},
    )


def _write_faults(deeds: Sequence[Deed], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("at_s", "fault", "to", "seconds"))
        rows.writerows((f"{deed.at_s:.1f}", deed.fault, deed.to, f"{deed.seconds:.1f}") for deed in deeds)


@click.command("soak")
@click.option(
    "--minutes", type=FiniteRange(0.1), default=30.0, show_default=True, help="Duration of the soak in minutes."
)
@click.option("--hours", type=FiniteRange(0.1), help="Duration in hours, instead of --minutes.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the faults. [random, and printed]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/soak"),
    show_default=True,
    help="Output folder.",
)
def soak(*, minutes: float, hours: float | None, seed: int | None, out: Path, as_json: bool, **counts: Any) -> None:
    """Cause a fault every few seconds for a long time: no frame may be unaccounted for, and no process may leak.

    Workers, broker and vehicles are killed, stopped and restarted; links fail, slow down and flap; an unauthorised client
    sends malformed messages. The exit code is 1 if a guarantee is violated, or if memory, files or threads grow.
    """
    errors = Console(stderr=True)
    host = machine_line(machine(), f"Mosquitto {mosquitto_version(require_mosquitto())}")
    seed = secrets.randbits(32) if seed is None else seed
    seconds = minutes * 60 if hours is None else hours * 3600
    errors.print(f"seed {seed}", highlight=False)
    columns = (BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("", total=seconds)
        result = run_soak(
            SoakPlan(seconds=seconds, seed=seed, **counts),
            out,
            lambda at_s, step: progress.update(task, completed=at_s, description=step),
        )
    if as_json:
        click.echo(json.dumps({**result.record(), "machine": machine()}, indent=2))
    else:
        console = Console()
        for part in _tables(result, host):
            console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
        for failure in result.failures:
            console.print(failure, style="bold red", markup=False, highlight=False)
        if not result.failures:
            console.print("All guarantees hold.", style="green")
    sys.exit(1 if result.failures else 0)


soak.params += [*options.parameters(SoakPlan), options.JSON_FLAG]


def _tables(result: SoakResult, host: str) -> Iterator[Table | str]:
    accounts = result.accounts
    faults = Counter(deed.fault for deed in result.deeds)
    yield ", ".join(f"{count} × {fault}" for fault, count in faults.most_common())
    yield accounts.equation
    yield f"{accounts.verdict}; retried {accounts.retried}, ignored replies {accounts.ignored.total()}"
    rows = []
    for growth in result.growths:
        most_mb = growth.most_rss_bytes and growth.most_rss_bytes / 1e6
        counts = (growth.role, growth.processes, growth.long_lived, most_mb)
        rows.append((*counts, *(_scaled(growth.per_hour[measure], measure) for measure in MEASURES)))
    rows.append(("limit", None, None, None, *(_scaled(GROWTH_LIMITS[measure], measure) for measure in MEASURES)))
    columns = {"role": "<", "processes": "", "long-lived": "", "most MB": ".1f"}
    yield result_table(
        "Growth per hour, in processes that lived for at least half of the time",
        {**columns, "MB/h": "+.2f", "files/h": "+.2f", "threads/h": "+.2f"},
        rows,
    )
    if not all(growth.judged for growth in result.growths):
        yield "The soak was too short to judge slopes: they are only shown."
    yield f"seed {result.plan.seed}; {result.plan.seconds:.0f} s; {host}"


def _scaled(rise: float | None, measure: str) -> float | None:
    return rise / 1e6 if rise is not None and measure == "rss_bytes" else rise
