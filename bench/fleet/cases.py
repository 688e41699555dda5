"""The cases that the benchmark runs: a load on a number of workers, with both kinds of dispatch or one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

from bench.fleet.arrivals import FleetArrivals
from bench.fleet.fleet_run import FleetEvent, FleetSession, FleetSettings
from bench.fleet.frames import read_frames
from bench.fleet.queues import QueueHistory, Span, share_after_ms
from bench.fleet.summary import capacity_hz, summarise
from bench.fleet.worker_pool import WorkerPool
from bench.harness.comparison import alternating
from ops.broker.broker import Broker
from shared import clock

GROUP, LOAD = "group", "load"
DISPATCHES = (LOAD, GROUP)
_EVENT_AT = 0.5  # Share of the run before a worker is killed or joins.


class Change(StrEnum):
    """A change of the workers in the middle of a run."""

    NONE = "none"
    KILL = "kill"  # `kill -9` of the first worker.
    JOIN = "join"  # One more worker, as fast as the first.


@dataclass(frozen=True, slots=True)
class FleetCase:
    """A load, and the workers that get it."""

    name: str
    services_ms: tuple[float, ...]
    vehicles: int
    arrivals: FleetArrivals = FleetArrivals.SATURATED
    load: float = 0.8  # Offered frames divided by the capacity of the workers; not used by saturated vehicles.
    rate_hz: float | None = None  # Frame rate of each vehicle, instead of `load`.
    window: int = 4
    seconds: float = 15.0
    dispatches: tuple[str, ...] = DISPATCHES
    change: Change = Change.NONE
    retry: bool = True

    def settings(self, dispatch: str, seed: int) -> FleetSettings:
        """Returns the settings of one run."""
        rate_hz = self.rate_hz or self.load * capacity_hz(self.services_ms) / self.vehicles
        return FleetSettings(
            self.vehicles, self.arrivals, rate_hz, self.window, self.seconds, seed, dispatch, self.retry
        )


OnRun = Callable[[str, float, float], None]  # Description, seconds so far, and seconds of all runs.


class CaseRunner:
    """Runs cases one after the other and shows how far it is."""

    def __init__(self, broker: Broker, folder: Path, rounds: int, seed: int, on_run: OnRun) -> None:
        """`seed`: that of the first round; each further round uses the next number."""
        self._broker = broker
        self._folder = folder
        self._rounds = rounds
        self._seed = seed
        self._on_run = on_run
        self._numbers = count(1)
        self._done_s = 0.0
        self._total_s = 0.0

    def run(self, cases: Sequence[FleetCase]) -> list[dict[str, Any]]:
        """Returns the record of every run.

        Raises:
            SkylaneError: a process did not start or lost its connection for good.
        """
        self._total_s += sum(case.seconds * self._rounds * len(case.dispatches) for case in cases)
        return [record for case in cases for record in self._run_case(case)]

    def _run_case(self, case: FleetCase) -> Iterator[dict[str, Any]]:
        self._on_run(f"{case.name}: starting {len(case.services_ms)} workers", self._done_s, self._total_s)
        with WorkerPool(self._broker.url, self._folder / f"workers-{next(self._numbers)}", case.services_ms) as pool:
            for number, dispatch in alternating(case.dispatches, self._rounds):
                settings = case.settings(dispatch, self._seed + number)
                title = f"{case.name}, {dispatch}, seed {settings.seed}"

                def show(elapsed_s: float, title: str = title) -> None:
                    self._on_run(title, self._done_s + elapsed_s, self._total_s)

                run = _CaseRun(case, settings, pool)
                yield {"case": case.name, **run.record(self._broker, self._folder / f"run-{next(self._numbers)}", show)}
                self._done_s += case.seconds


class _CaseRun:
    """One run of a case; afterwards the pool has the workers of the case again."""

    def __init__(self, case: FleetCase, settings: FleetSettings, pool: WorkerPool) -> None:
        self._case = case
        self._settings = settings
        self._pool = pool
        self._changed = ""  # The worker that was killed or joined.

    def record(self, broker: Broker, folder: Path, on_progress: Callable[[float], None]) -> dict[str, Any]:
        """Runs, and returns the JSON record."""
        case, pool = self._case, self._pool
        started_ns = clock.now_ns()
        services_ms = dict(pool.services_ms)
        changes = {Change.KILL: self._kill, Change.JOIN: self._join}
        events = [FleetEvent(_EVENT_AT * case.seconds, changes[case.change])] if case.change in changes else []
        times = FleetSession(self._settings, broker, folder).run(pool, events, on_progress)
        alive = dict.fromkeys(services_ms, (started_ns, times.end_ns))
        if case.change is Change.KILL:
            alive[self._changed] = (started_ns, times.events_ns[0][1])
            pool.start(services_ms[self._changed])
        if case.change is Change.JOIN:
            services_ms |= {self._changed: case.services_ms[0]}
            alive[self._changed] = (times.events_ns[0][1], times.end_ns)
            pool.stop(self._changed)
        timed = {name: (services_ms[name], alive[name]) for name in alive}
        record = summarise(self._settings, times, timed)
        return {**record, "change": case.change.value, **self._change_record(folder, timed, times.end_ns)}

    def _kill(self) -> None:
        self._changed = next(iter(self._pool.running))
        self._pool.kill(self._changed)

    def _join(self) -> None:
        self._changed = self._pool.start(self._case.services_ms[0]).name

    def _change_record(self, folder: Path, alive: Mapping[str, tuple[float, Span]], end_ns: int) -> dict[str, Any]:
        """Returns the time until the other workers had the load of a dead one, or until a new one had its share."""
        if self._case.change is Change.NONE:
            return {}
        frames = read_frames(folder)
        if self._case.change is Change.JOIN:
            joined_ns = alive[self._changed][1][0]
            return {"share_after_ms": share_after_ms(frames, self._changed, len(alive), joined_ns)}
        killed_ns = alive[self._changed][1][1]
        survivors = {name: life for name, life in alive.items() if name != self._changed}
        history = QueueHistory.of(frames, survivors, (killed_ns, end_ns))
        return {"balanced_after_ms": history.balanced_after_ms(killed_ns)}
