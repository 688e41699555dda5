"""Every server through the scenarios of the comparison of 2022, in alternating rounds of one run.

Each server has one way here: its own first one over TCP; Skylane has its plain call, and MQTT as a vehicle uses it. A
cold start is a server started anew for one run, with no other beside it. For the other scenarios all servers are up and
warm, and whose turn it is not is stopped, as in the contest.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bench.peers.catalogue import PEERS
from bench.peers.contestant import Contestant
from bench.peers.lineup import LineUp, nobody
from bench.peers.load import SETTLING, Taken, one_in_flight
from bench.peers.meter import Meter, Usage
from bench.peers.plan import OURS, Plan
from bench.peers.scenarios import SCENARIOS, pictures
from bench.peers.starter import Starter
from bench.peers.work import Job, jobs
from shared.errors import SkylaneError

OUR_WAYS = ("grpc", "mqtt")


@dataclass(frozen=True, slots=True)
class Run:
    """One server in one scenario, in one round."""

    scenario: str
    server: str
    way: str
    number: int  # Of the round, from 0.
    taken: Sequence[Taken]
    usage: Usage

    @property
    def name(self) -> str:
        """The contestant's."""
        return f"{self.server} {self.way}"


@dataclass(slots=True)
class Outcome:
    """What the runs gave."""

    runs: list[Run] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # Servers, or ways to them, not measured to the end, and why.
    versions: dict[str, str] = field(default_factory=dict)


def run(plan: Plan, on_step: Callable[[str], None]) -> Outcome:
    """Run the plan's scenarios; `on_step` is told before each run.

    Raises:
        PeerError: no server can be measured.
        SkylaneError: the bag or the model cannot be used.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-peers-")))
        on_step("the pictures and their masks")
        work = jobs({name: pictures(plan, name) for name in plan.scenarios})
        starter = Starter(plan, next(iter(work.values()))[0], folder)
        trial = _Trial(plan, starter, on_step)
        trial.cold({name: work[name] for name in plan.scenarios if SCENARIOS[name].is_cold})
        trial.warm({name: work[name] for name in plan.scenarios if not SCENARIOS[name].is_cold}, stack)
        return trial.outcome


class _Trial:
    """The runs of a plan, and who had to be left out of them."""

    def __init__(self, plan: Plan, starter: Starter, on_step: Callable[[str], None]) -> None:
        self.outcome = Outcome(versions=starter.versions)
        self._plan, self._starter, self._on_step = plan, starter, on_step

    def cold(self, work: Mapping[str, Sequence[Job]]) -> None:
        """A server of its own for every run."""
        for number, (scenario, frames), (server, way) in product(range(self._plan.rounds), work.items(), self._seats()):
            if server not in self.outcome.skipped:
                self._told(number, scenario, f"{server} {way}")
                try:
                    with ExitStack() as stack:
                        (contestant,) = self._starter.start(server, stack, (way,), is_cold=True)
                        self._measure(contestant, scenario, number, frames, settling=0)
                except SkylaneError as error:
                    self.outcome.skipped[server] = f"not from round {number + 1} on, {scenario}: {error}"
        if work and not self.outcome.runs:
            raise nobody(self.outcome.skipped)

    def warm(self, work: Mapping[str, Sequence[Job]], stack: ExitStack) -> None:
        """All servers at once, each awake in its turn alone."""
        if not work:
            return
        lineup = LineUp(self._starter, work.values(), self._plan.turn_s, stack)
        wanted = {name: ways(name) for name in self._plan.names if name not in self.outcome.skipped}
        lineup.start(wanted, self._on_step)
        self.outcome.skipped |= lineup.skipped
        everybody = product(range(self._plan.rounds), work.items(), lineup.contestants)
        for number, (scenario, frames), contestant in everybody:
            if contestant.name not in self.outcome.skipped:
                self._told(number, scenario, contestant.name)
                try:
                    self._measure(contestant, scenario, number, frames, settling=SETTLING)
                except SkylaneError as error:
                    self.outcome.skipped[contestant.name] = f"not from round {number + 1} on, {scenario}: {error}"

    def _measure(
        self, contestant: Contestant, scenario: str, number: int, frames: Sequence[Job], *, settling: int
    ) -> None:
        plan, meter = self._plan, Meter(contestant.tree)
        with contestant.awake():
            taken = one_in_flight(contestant.connect, frames, plan.frames, plan.turn_s, settling=settling, meter=meter)
        self.outcome.runs.append(Run(scenario, contestant.server, contestant.way, number, taken, meter.usage))

    def _seats(self) -> list[tuple[str, str]]:
        return [(name, way) for name in self._plan.names for way in ways(name)]

    def _told(self, number: int, scenario: str, name: str) -> None:
        self._on_step(f"round {number + 1} of {self._plan.rounds}, {scenario}, {name}")


def ways(server: str) -> tuple[str, ...]:
    """The ways of a server of NAMES that are measured."""
    if server == OURS:
        return OUR_WAYS
    return (next(way.name for way in PEERS[server].ways if way.over_tcp),)
