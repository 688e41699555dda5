"""Every server in turn with the same pictures and the same load, in alternating rounds of one run.

All servers are up from the start to the end, each with its own environment. Who is not being measured is stopped, with
all of its processes, so that its idling costs nobody anything. What serving costs a call is the time that the client
took for it less the time that this very call's inference took, as the server timed it.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.overhead import Plan as Pictures
from bench.peers import network, skylane
from bench.peers.catalogue import PEERS, ROOT, Seat
from bench.peers.client import Client, PeerError
from bench.peers.environments import environment
from bench.peers.function import GRAPH_VARIABLE, SHAPE_VARIABLE
from bench.peers.load import Taken, many_at_a_time, one_in_flight, warm_up
from bench.peers.process_tree import ProcessTree
from bench.peers.server import Server
from bench.peers.work import CODECS, Job, jobs, write_graph, write_torchscript
from bench.ports import free_port
from shared.errors import SkylaneError

OURS = "skylane"
NAMES = (OURS, *PEERS)
_READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how often."""

    bag: Path
    models: Path
    model: str = "road-small"
    names: tuple[str, ...] = NAMES
    codecs: tuple[str, ...] = CODECS
    rounds: int = 5
    frames: int = 20  # A turn with one picture in flight; twice as many with several clients.
    clients: int = 8


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to a server that runs."""

    server: str  # A name of NAMES.
    way: str
    connect: Callable[[], Client]
    tree: ProcessTree
    over_tcp: bool = True

    @property
    def name(self) -> str:
        """Such as "triton grpc"."""
        return f"{self.server} {self.way}"


@dataclass(slots=True)
class Turns:
    """What a way's turns with one codec gave, a list a round."""

    alone: list[list[Taken]] = field(default_factory=list)
    crowded: list[list[Taken]] = field(default_factory=list)
    answers_hz: list[float] = field(default_factory=list)  # With several clients.


@dataclass(slots=True)
class Outcome:
    """What a run gave."""

    turns: dict[str, dict[str, Turns]]  # By codec and contestant.
    contestants: Sequence[Contestant]
    skipped: dict[str, str]  # Servers or ways that were not measured, and why.
    versions: dict[str, str]


@contextmanager
def _thawed(tree: ProcessTree) -> Iterator[None]:
    tree.thaw()
    try:
        yield
    finally:
        tree.freeze()


def run(plan: Plan, on_step: Callable[[str], None]) -> Outcome:
    """Start all that can be started, and run the rounds; `on_step` is told before each.

    Raises:
        PeerError: none of them can be measured.
        SkylaneError: the bag or the model cannot be used.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-peers-")))
        on_step("the pictures and their masks")
        work = jobs(Pictures(plan.bag, plan.models, plan.model, frames=plan.frames))
        outcome = Outcome({codec: {} for codec in plan.codecs}, [], {}, {})
        outcome.contestants = list(_started(plan, work, folder, stack, outcome, on_step))
        if not outcome.contestants:
            raise PeerError("nobody to measure: " + "; ".join(f"{who}: {why}" for who, why in outcome.skipped.items()))
        for number in range(plan.rounds):
            for codec in plan.codecs:
                for contestant in outcome.contestants:
                    on_step(f"round {number + 1} of {plan.rounds}, {codec}, {contestant.name}")
                    _turn(contestant, plan, work[codec], codec, outcome)
        return outcome


def _turn(contestant: Contestant, plan: Plan, work: Sequence[Job], codec: str, outcome: Outcome) -> None:
    if contestant.name in outcome.skipped:
        return
    turns = outcome.turns[codec].setdefault(contestant.name, Turns())
    try:
        with _thawed(contestant.tree):
            alone = one_in_flight(contestant.connect, work, plan.frames)
            answers_hz, crowded = many_at_a_time(contestant.connect, work, 2 * plan.frames, plan.clients)
    except SkylaneError as error:
        outcome.skipped[contestant.name] = f"failed while it was measured: {error}"
        return
    turns.alone.append(alone)
    turns.crowded.append(crowded)
    turns.answers_hz.append(answers_hz)


def _started(
    plan: Plan,
    work: Mapping[str, Sequence[Job]],
    folder: Path,
    stack: ExitStack,
    outcome: Outcome,
    on_step: Callable[[str], None],
) -> Iterator[Contestant]:
    """Those of the plan's servers that answer, warmed up and stopped; the others' reasons go to `outcome.skipped`."""
    graphs = _Graphs(plan, folder)
    for name in plan.names:
        on_step(f"starting {name}")
        own = folder / name
        own.mkdir()
        with ExitStack() as attempt:
            try:
                if name == OURS:
                    tree, ways = skylane.opened(attempt, plan.models, plan.model)
                    found = [Contestant(OURS, way, connect, tree) for way, connect in ways.items()]
                else:
                    found = _peer(name, attempt, graphs, work, own, outcome)
            except SkylaneError as error:
                outcome.skipped[name] = str(error)
                continue
            stack.enter_context(attempt.pop_all())
        yield from _warm(found, work, plan, outcome)


def _warm(
    found: Sequence[Contestant], work: Mapping[str, Sequence[Job]], plan: Plan, outcome: Outcome
) -> Iterator[Contestant]:
    for contestant in found:
        try:
            with _thawed(contestant.tree):
                for codec in plan.codecs:
                    warm_up(contestant.connect, work[codec])
        except SkylaneError as error:
            outcome.skipped[contestant.name] = str(error)
        else:
            yield contestant


def _peer(
    name: str,
    stack: ExitStack,
    graphs: "_Graphs",
    work: Mapping[str, Sequence[Job]],
    folder: Path,
    outcome: Outcome,
) -> list[Contestant]:
    peer = PEERS[name]
    if peer.is_alone and not network.is_own():
        raise PeerError("it listens on every address of the machine, and is run only where the bench can have a network of its own: as root")
    made = environment(name)
    made.check()
    outcome.versions[name] = f"{peer.library} {made.version(peer.library)}"
    seat = Seat(made, folder, (free_port(), free_port()))
    shape = next(iter(work.values()))[0].frame.shape
    variables = {
        "PYTHONPATH": str(ROOT),
        GRAPH_VARIABLE: str(graphs.torchscript() if peer.is_torch else graphs.tensorflow()),
        SHAPE_VARIABLE: "x".join(map(str, shape)),
        "HOME": str(folder),  # Some keep caches there.
        "PATH": f"{made.programs}{os.pathsep}{os.environ['PATH']}",
        **peer.variables,
    }
    server = stack.enter_context(Server(peer.command(seat), folder, variables))
    connects = {way: partial(way.connect, seat) for way in peer.ways}
    server.await_answer(connects[peer.ways[0]], next(iter(work.values()))[0], _READY_S)
    server.tree.freeze()
    return [Contestant(name, way.name, connect, server.tree, way.over_tcp) for way, connect in connects.items()]


class _Graphs:
    """The files that the servers load, each made when the first of them needs it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder

    def tensorflow(self) -> Path:
        """The graph of Skylane's engine."""
        path = self._folder / "graph.pb"
        if not path.exists():
            write_graph(self._plan.models, self._plan.model, path)
        return path

    def torchscript(self) -> Path:
        """The same network as TorchScript."""
        path = self._folder / "network.pt"
        if not path.exists():
            write_torchscript(self._plan.models, self._plan.model, path)
        return path
