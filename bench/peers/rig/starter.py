"""Starts Skylane or a peer, with or without a first inference."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from bench.peers.clients import Client, PeerError, ask_once, check_ready
from bench.peers.plan import OURS, PeerPlan
from bench.peers.rig import network, skylane
from bench.peers.rig.catalogue import PEERS, ROOT, ServerSetup
from bench.peers.rig.environments import environment
from bench.peers.rig.function import GRAPH_VARIABLE, SHAPE_VARIABLE
from bench.peers.rig.process_tree import ProcessTree
from bench.peers.rig.server import Server
from bench.peers.rig.workload import Job, write_graph
from ops.processes.environment import free_ports

_READY_S = 120.0


@dataclass(frozen=True, slots=True)
class PeerEndpoint:
    """A running server and a transport to it."""

    server: str  # A name of NAMES.
    way: str
    connect: Callable[[], Client]
    tree: ProcessTree
    over_tcp: bool = True
    is_floor: bool = False  # See Peer.

    @property
    def name(self) -> str:
        """For example "triton grpc"."""
        return f"{self.server} {self.way}"

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Lets its server run within the block and freezes it afterwards."""
        self.tree.thaw()
        try:
            yield
        finally:
            self.tree.freeze()


class Starter:
    """Starts servers, also repeatedly; the files that they serve are written once."""

    def __init__(self, plan: PeerPlan, job: Job, folder: Path) -> None:
        """Creates the starter; `job` is an example of the calls, `folder` a folder for the servers' files."""
        self.versions: dict[str, str] = {}  # Versions of the started peers.
        self._plan, self._job, self._folder = plan, job, folder

    def start(
        self, name: str, stack: ExitStack, ways: Sequence[str] | None = None, *, is_cold: bool = False
    ) -> list[PeerEndpoint]:
        """Starts a server of NAMES until the stack is closed and returns its endpoints, which are frozen.

        `ways` are the transports to use (None: all). With `is_cold`, the server has made no inference yet.

        Raises:
            SkylaneError: the server cannot be started, or does not become ready.
        """
        if name == OURS:
            tree, connects = skylane.open_worker(stack, self._plan, ways, is_cold=is_cold)
            found = [PeerEndpoint(OURS, way, connect, tree) for way, connect in connects.items()]
        else:
            found = self._start_peer(name, stack, is_cold=is_cold)
        found[0].tree.freeze()
        return [each for each in found if ways is None or each.way in ways]

    def _start_peer(self, name: str, stack: ExitStack, *, is_cold: bool) -> list[PeerEndpoint]:
        peer = PEERS[name]
        if peer.is_alone and not network.is_own():
            raise PeerError("it listens on every address of the machine: run as root, to use a network namespace")
        made = environment(name)
        made.check()
        self.versions[name] = f"{peer.library} {made.version(peer.library)}"
        folder = self._folder / name
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # The next start must not find old files.
        setup = ServerSetup(made, folder, free_ports(4))
        variables = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{made.programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),  # Caches; the next two variables are for sockets.
            "TMPDIR": str(folder),
            "TEMP": str(folder),
            GRAPH_VARIABLE: str(self._torchscript() if peer.is_torch else self._graph()),
            SHAPE_VARIABLE: "x".join(map(str, self._job.input_shape)),
            **peer.variables,
        }
        server = stack.enter_context(Server(peer.command(setup), folder, variables, made.server_log))
        connects = {way: partial(way.connect, setup) for way in peer.ways}
        if is_cold:
            attempt = partial(check_ready, setup.ports[peer.ready_port], peer.ready_path, peer.ready_word)
        else:
            attempt = partial(ask_once, connects[peer.ways[0]], self._job)
        server.wait(attempt, _READY_S)
        return [
            PeerEndpoint(name, way.name, connect, server.tree, way.over_tcp, peer.is_floor)
            for way, connect in connects.items()
        ]

    def _graph(self) -> Path:
        """Writes the graph of Skylane's engine and returns its path."""
        path = self._folder / "graph.pb"
        if not path.exists():
            write_graph(self._plan.models, self._plan.model, path)
        return path

    def _torchscript(self) -> Path:
        """Writes the same network as TorchScript and returns its path."""
        path = self._folder / "network.pt"
        if not path.exists():
            write: Callable[..., None] = import_module("bench.peers.rig.torch_network").write_torchscript
            write(self._plan.models, self._plan.model, path, self._job.input_shape[:2])
        return path
