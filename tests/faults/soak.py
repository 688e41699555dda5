"""The soak test: vehicles, workers, broker and links with random faults for a long time; lost frames and leaks.

`make soak`, or `python -m tests.faults.soak --help` for all options.
"""

import csv
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from analysis.logs.frame_accounting import FrameAccounts
from bench import harness
from bench.harness import BenchRun
from ops.broker.mosquitto import MOSQUITTO_MISSING, find_mosquitto, mosquitto_version
from shared.errors import SkylaneError
from shared.flags import FiniteRange, WholeRange
from shared.runtime.processes import interrupt_on_termination
from shared.terminal_table import result_table
from tests.support.faults.chaos import Chaos, Deed
from tests.support.faults.finding import NO_MASKS
from tests.support.faults.rig import Rig
from tests.support.faults.site import Site
from tests.support.faults.working_folder import place
from tests.support.process_log import MEASURES, ProcessHistory, ProcessLog

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

    minutes: float = harness.number(30.0, 0.1, None, "Duration of the soak in minutes.")
    hours: float | None = harness.option(type=FiniteRange(0.1), help="Duration in hours, instead of --minutes.")
    seed: int = harness.option(
        partial(secrets.randbits, 32), type=WholeRange(0), help="Seed of the faults. [random, and printed]"
    )
    out: Path = harness.option(
        Path("runs/soak"), type=click.Path(file_okay=False, path_type=Path), show_default=True, help="Output folder."
    )
    vehicles: int = harness.number(3, 2, 16, "Number of vehicles.")
    workers: int = harness.number(3, 2, 16, "Number of workers.")
    rate_hz: float = harness.number(10.0, 0.5, 100, "Frame rate of each vehicle.")

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.minutes * 60 if self.hours is None else self.hours * 3600


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


def measure(plan: SoakPlan, run: BenchRun) -> dict[str, Any]:
    """Cause a fault every few seconds for a long time: no frame may be unaccounted for, and no process may leak.

    Workers, broker and vehicles are killed, stopped and restarted; links fail, slow down and flap; an unauthorised client
    sends malformed messages. The exit code is 1 if a guarantee is violated, or if memory, files or threads grow.
    """
    mosquitto = find_mosquitto()
    assert mosquitto, MOSQUITTO_MISSING
    version = mosquitto_version(mosquitto)
    click.echo(f"seed {plan.seed}", err=True)
    steps = ["starting"]
    begin_s = time.monotonic()

    def wait(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            run.step(f"{time.monotonic() - begin_s:.0f} of {plan.seconds:.0f} s: {steps[-1]}")
            time.sleep(min(_POLL_S, left_s))

    with (
        place(plan.out, emptied=True),
        Rig(plan.out, plan.seed, steps.append) as rig,
        ProcessLog(plan.out / "processes.csv") as log,
    ):
        run.step("starting")
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
        run.step("ending")
        accounts = site.end()
    _write_faults(chaos.deeds, plan.out / "faults.csv")
    growths = [measure_growth(role, log.histories, plan.seconds) for role in ROLES]
    return {
        **summarise(plan, accounts, growths, site.broken),
        "faults": dict(Counter(deed.fault for deed in chaos.deeds)),
        "broker": f"Mosquitto {version}",
    }


def summarise(
    plan: SoakPlan, accounts: FrameAccounts, growths: Sequence[ResourceGrowth], broken: Sequence[str]
) -> dict[str, Any]:
    """Summarises a soak for JSON output; `broken`: processes that ended by themselves."""
    failures = [
        *broken,
        *accounts.failures,
        *(() if accounts.masks_checked else (NO_MASKS,)),
        *(failure for growth in growths for failure in growth.failures),
    ]
    return {
        "plan": {key: getattr(plan, key) for key in ("seconds", "seed", "vehicles", "workers", "rate_hz")},
        "verdict": "FAILS" if failures else "holds",
        "failures": failures,
        "ledger": accounts.equation,
        "unaccounted": accounts.unaccounted,
        "accepted_twice": accounts.accepted_twice,
        "masks_checked": accounts.masks_checked,
        "masks_wrong": accounts.masks_wrong,
        "retried": accounts.retried,
        "ignored_answers": dict(accounts.ignored),
        "reasons": dict(accounts.reasons),
        "growth": [asdict(growth) for growth in growths],
    }


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


def _tables(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield ", ".join(f"{count} × {fault}" for fault, count in Counter(result["faults"]).most_common())
    yield result["ledger"]
    yield (
        f"unaccounted {result['unaccounted']}, accepted twice {result['accepted_twice']}, wrong labels "
        f"{result['masks_wrong']} of {result['masks_checked']} masks; retried {result['retried']}, ignored replies "
        f"{sum(result['ignored_answers'].values())}"
    )
    rows = []
    for growth in result["growth"]:
        most_mb = growth["most_rss_bytes"] and growth["most_rss_bytes"] / 1e6
        counts = (growth["role"], growth["processes"], growth["long_lived"], most_mb)
        rows.append((*counts, *(_scaled(growth["per_hour"][measure], measure) for measure in MEASURES)))
    rows.append(("limit", None, None, None, *(_scaled(GROWTH_LIMITS[measure], measure) for measure in MEASURES)))
    columns = {"role": "<", "processes": "", "long-lived": "", "most MB": ".1f"}
    yield result_table(
        "Growth per hour, in processes that lived for at least half of the time",
        {**columns, "MB/h": "+.2f", "files/h": "+.2f", "threads/h": "+.2f"},
        rows,
    )
    if not all(growth["judged"] for growth in result["growth"]):
        yield "The soak was too short to judge slopes: they are only shown."
    yield f"seed {result['plan']['seed']}; {result['plan']['seconds']:.0f} s"
    for failure in result["failures"]:
        yield Text(failure, style="bold red")
    if not result["failures"]:
        yield Text("All guarantees hold.", style="green")


def _scaled(rise: float | None, measure: str) -> float | None:
    return rise / 1e6 if rise is not None and measure == "rss_bytes" else rise


def main() -> None:
    """Runs the soak test; an error that the user can fix is reported in one line, with exit code 1."""
    soak = harness.bench_command("soak", SoakPlan, measure, _tables)
    with interrupt_on_termination():
        try:
            soak()
        except SkylaneError as error:
            sys.exit(f"soak: {error}")


if __name__ == "__main__":
    main()
