"""Who takes part: each server started, answering, warmed up and stopped; or the reason why it is not."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.peers import network, skylane
from bench.peers.catalogue import PEERS, ROOT, Seat
from bench.peers.client import Client, PeerError
from bench.peers.environments import environment
from bench.peers.function import GRAPH_VARIABLE, SHAPE_VARIABLE
from bench.peers.load import warm_up
from bench.peers.plan import OURS, Plan
from bench.peers.process_tree import ProcessTree
from bench.peers.server import Server
from bench.peers.work import Job, write_graph, write_torchscript
from bench.ports import free_port
from shared.errors import SkylaneError

_READY_S = 120.0


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

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Its server runs within the block, and is stopped after it."""
        self.tree.thaw()
        try:
            yield
        finally:
            self.tree.freeze()


class LineUp:
    """The servers of a plan, up until the stack that it is given is closed."""

    def __init__(self, plan: Plan, work: Mapping[str, Sequence[Job]], folder: Path, stack: ExitStack) -> None:
        """`folder`: empty; the servers keep there what they need to."""
        self.contestants: list[Contestant] = []
        self.skipped: dict[str, str] = {}  # Servers, or ways to them, and why they take no part.
        self.versions: dict[str, str] = {}
        self._plan, self._work, self._folder, self._stack = plan, work, folder, stack

    def start(self, on_step: Callable[[str], None]) -> None:
        """Start one after the other; `on_step` is told before each.

        Raises:
            PeerError: none can be started.
        """
        for name in self._plan.names:
            on_step(f"starting {name}")
            with ExitStack() as attempt:
                try:
                    found = self._ours(attempt) if name == OURS else self._peer(name, attempt)
                except SkylaneError as error:
                    self.skipped[name] = str(error)
                    continue
                self._stack.enter_context(attempt.pop_all())
            for contestant in found:
                on_step(f"warming up {contestant.name}")
                self._warm(contestant)
        if not self.contestants:
            raise PeerError("nobody to measure: " + "; ".join(f"{who}: {why}" for who, why in self.skipped.items()))

    def _warm(self, contestant: Contestant) -> None:
        try:
            with contestant.awake():
                for codec in self._plan.codecs:
                    warm_up(contestant.connect, self._work[codec], self._plan.turn_s)
        except SkylaneError as error:
            self.skipped[contestant.name] = str(error)
        else:
            self.contestants.append(contestant)

    def _ours(self, stack: ExitStack) -> list[Contestant]:
        tree, ways = skylane.opened(stack, self._plan.models, self._plan.model, self._plan.mask_codec)
        tree.freeze()
        return [Contestant(OURS, way, connect, tree) for way, connect in ways.items()]

    def _peer(self, name: str, stack: ExitStack) -> list[Contestant]:
        peer = PEERS[name]
        if peer.is_alone and not network.is_own():
            raise PeerError("it listens on every address of the machine: run as root, and it gets a network of its own")
        made = environment(name)
        made.check()
        self.versions[name] = f"{peer.library} {made.version(peer.library)}"
        folder = self._folder / name
        folder.mkdir()
        seat = Seat(made, folder, (free_port(), free_port(), free_port(), free_port()))
        job = next(iter(self._work.values()))[0]
        variables = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{made.programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),  # For caches; the next two are for sockets.
            "TMPDIR": str(folder),
            "TEMP": str(folder),
            GRAPH_VARIABLE: str(self._torchscript() if peer.is_torch else self._graph()),
            SHAPE_VARIABLE: "x".join(map(str, job.frame.shape)),
            **peer.variables,
        }
        server = stack.enter_context(Server(peer.command(seat), folder, variables, made.server_log))
        connects = {way: partial(way.connect, seat) for way in peer.ways}
        server.await_answer(connects[peer.ways[0]], job, _READY_S)
        server.tree.freeze()
        return [Contestant(name, way.name, connect, server.tree, way.over_tcp) for way, connect in connects.items()]

    def _graph(self) -> Path:
        """The graph of Skylane's engine, in a file."""
        path = self._folder / "graph.pb"
        if not path.exists():
            write_graph(self._plan.models, self._plan.model, path)
        return path

    def _torchscript(self) -> Path:
        """The same network as TorchScript, in a file."""
        path = self._folder / "network.pt"
        if not path.exists():
            write_torchscript(self._plan.models, self._plan.model, path)
        return path
