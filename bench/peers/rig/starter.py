"""Starts Skylane or a peer, with or without a first inference."""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path

from bench.harness.environment import free_port
from bench.peers.clients.client import PeerError
from bench.peers.load_comparison.peer_endpoint import PeerEndpoint
from bench.peers.load_comparison.plan import OURS, Plan
from bench.peers.rig import network, skylane
from bench.peers.rig.catalogue import PEERS, ROOT, ServerSetup
from bench.peers.rig.environments import environment
from bench.peers.rig.function import GRAPH_VARIABLE, SHAPE_VARIABLE
from bench.peers.rig.server import Server
from bench.peers.rig.workload import Job, write_graph

_READY_S = 120.0


class Starter:
    """Starts servers, also repeatedly; the files that they serve are written once."""

    def __init__(self, plan: Plan, job: Job, folder: Path) -> None:
        """Creates the starter; `job` is an example of the calls, `folder` an empty folder for the servers' files."""
        self.versions: dict[str, str] = {}  # Versions of the started peers.
        self._plan, self._job, self._folder = plan, job, folder

    def start(
        self, name: str, stack: ExitStack, ways: Sequence[str] | None = None, *, is_cold: bool = False
    ) -> list[PeerEndpoint]:
        """Starts a server of NAMES until the stack is closed and returns its candidates, which are frozen.

        `ways` are the transports to use (None: all). With `is_cold`, the server has made no inference yet.

        Raises:
            SkylaneError: the server cannot be started, or does not become ready.
        """
        found = self._ours(stack, ways, is_cold=is_cold) if name == OURS else self._peer(name, stack, is_cold=is_cold)
        return [each for each in found if ways is None or each.way in ways]

    def _ours(self, stack: ExitStack, ways: Sequence[str] | None, *, is_cold: bool) -> list[PeerEndpoint]:
        plan = self._plan
        tree, connects = skylane.opened(stack, plan.models, plan.model, plan.mask_codec, ways, is_cold=is_cold)
        tree.freeze()
        return [PeerEndpoint(OURS, way, connect, tree) for way, connect in connects.items()]

    def _peer(self, name: str, stack: ExitStack, *, is_cold: bool) -> list[PeerEndpoint]:
        peer = PEERS[name]
        if peer.is_alone and not network.is_own():
            raise PeerError("it listens on every address of the machine: run as root, to use a network namespace")
        made = environment(name)
        made.check()
        self.versions[name] = f"{peer.library} {made.version(peer.library)}"
        folder = self._folder / name
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # The next start must not find old files.
        setup = ServerSetup(made, folder, (free_port(), free_port(), free_port(), free_port()))
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
            server.await_ready(setup.ports[peer.ready_port], peer.ready_path, peer.ready_word, _READY_S)
        else:
            server.await_answer(connects[peer.ways[0]], self._job, _READY_S)
        server.tree.freeze()
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
