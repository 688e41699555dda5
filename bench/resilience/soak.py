"""A soak: vehicles, workers, broker and links for a long time, with faults drawn by chance; what is lost, and who grows."""

import csv
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.faults.chaos import Chaos, Deed
from bench.faults.rig.rig import Rig
from bench.faults.rig.site import Site
from bench.faults.rig.working_folder import place
from bench.harness.frame_accounting import NO_MASKS, FrameAccounts
from bench.harness.process_log import MEASURES, Life, ProcessLog

ROLES = ("broker", "worker", "vehicle", "link")
# What a process that lives through it may rise by in an hour.
MOST_PER_HOUR = {"rss_bytes": 24e6, "fds": 2.0, "threads": 2.0}
_JUDGED_S = 600.0  # Of a shorter time slopes are told, not judged: an allocator's last steps would look steep.
_SETTLED_S = 300.0  # Of a process's life before its slope begins; of a short soak a third.
_PAUSE_S = (1.0, 6.0)  # Between two faults.
_QUIET_S = 15.0  # At the end, so that everybody is back.
_BROKER_MAY_DIE = 0.3  # Of the time: afterwards it is only frozen, so that its memory is seen over the rest.
_LOOK_S = 0.5
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how many, and what draws the faults."""

    seconds: float
    seed: int
    vehicles: int = 3
    workers: int = 3
    rate_hz: float = 10.0  # Of each vehicle.


@dataclass(frozen=True, slots=True)
class Growth:
    """What the processes of a role held, and how fast it grew in those that lived for half of the time or longer."""

    role: str
    processes: int
    long_lived: int
    most_rss_bytes: int | None
    judged: bool  # Whether they lived long enough for their slopes to be held against a limit.
    per_hour: dict[str, float | None]  # Of each measure: the steepest slope.

    @property
    def failures(self) -> list[str]:
        """Every slope that is steeper than it may be, or that nobody lived long enough to tell."""
        return [
            f"the {self.role}'s {measure} rise by {'nobody knows what' if rise is None else f'{rise:,.0f}'} an hour "
            f"(at most {MOST_PER_HOUR[measure]:,.0f})"
            for measure, rise in self.per_hour.items()
            if self.judged and (rise is None or rise > MOST_PER_HOUR[measure])
        ]


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a soak came to."""

    plan: Plan
    accounts: FrameAccounts
    deeds: tuple[Deed, ...]
    growths: tuple[Growth, ...]
    broken: tuple[str, ...]  # Who ended though nobody asked for it.

    @property
    def failures(self) -> list[str]:
        """Every promise that did not hold."""
        unseen = () if self.accounts.masks_checked else (NO_MASKS,)
        return [
            *self.broken,
            *self.accounts.failures,
            *unseen,
            *(failure for growth in self.growths for failure in growth.failures),
        ]

    def told(self) -> dict[str, Any]:
        """As `--json` prints it."""
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


def soak(plan: Plan, folder: Path, on_step: Callable[[float, str], None]) -> Soaked:
    """Play it; `on_step` is told how many seconds of it have passed, and what is being done.

    Raises:
        SkylaneError: it could not begin.
    """
    steps = ["starting"]
    began_s = time.monotonic()

    def wait(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            on_step(time.monotonic() - began_s, steps[-1])
            time.sleep(min(_LOOK_S, left_s))

    with (
        place(folder, emptied=True),
        Rig(folder, plan.seed, steps.append) as rig,
        ProcessLog(folder / "processes.csv") as log,
    ):
        wait(0.0)
        site = Site(rig, log, vehicles=plan.vehicles, workers=plan.workers, rate_hz=plan.rate_hz, wait=wait)
        chaos = Chaos(site)
        began_s = time.monotonic()
        strikes_until_s = began_s + plan.seconds - _QUIET_S
        while time.monotonic() < strikes_until_s:
            steps.append("all is well")
            wait(rig.chance.uniform(*_PAUSE_S))
            passed_s = time.monotonic() - began_s
            with site.noted():
                site.tend()
                chaos.strike(
                    most_s=max(0.0, strikes_until_s - time.monotonic()),
                    may_kill_broker=passed_s < plan.seconds * _BROKER_MAY_DIE,
                )
        steps.append("quiet at the end")
        with site.noted():
            site.tend()
        wait(max(0.0, began_s + plan.seconds - time.monotonic()))
        steps.append("ending")
        wait(0.0)
        accounts = site.end()
    _write(chaos.deeds, folder / "faults.csv")
    growths = tuple(growth(role, log.lives, plan.seconds) for role in ROLES)
    return Soaked(plan, accounts, tuple(chaos.deeds), growths, tuple(site.broken))


def growth(role: str, lives: Sequence[Life], seconds: float) -> Growth:
    """How the processes of a role grew in a soak of so many seconds."""
    settled_s = min(_SETTLED_S, seconds / 3)
    ours = [life for life in lives if life.role == role]
    long_lived = [life for life in ours if life.seconds >= seconds / 2]
    slopes = {
        measure: [
            rise * _HOUR_S for life in long_lived if (rise := life.slope(measure, settled_s=settled_s)) is not None
        ]
        for measure in MEASURES
    }
    most = [rss for life in ours if (rss := life.most("rss_bytes")) is not None]
    return Growth(
        role,
        processes=len(ours),
        long_lived=len(long_lived),
        most_rss_bytes=max(most, default=None),
        judged=seconds - settled_s >= _JUDGED_S,
        per_hour={measure: max(rises, default=None) for measure, rises in slopes.items()},
    )


def _write(deeds: Sequence[Deed], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("at_s", "fault", "to", "seconds"))
        rows.writerows((f"{deed.at_s:.1f}", deed.fault, deed.to, f"{deed.seconds:.1f}") for deed in deeds)
