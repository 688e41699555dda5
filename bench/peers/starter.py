"""Settings of the comparisons, and the servers that they start: Skylane or a peer, with or without a first inference."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from analysis.study.scenarios import SCENARIOS as STUDIED
from bench import harness
from bench.harness import BenchRun
from bench.peers.catalogue import PEERS, ROOT, ServerSetup
from bench.peers.clients import CallClient, Client, Job, PeerError, SkylaneClient, ask_once, check_ready
from bench.peers.function import GRAPH_VARIABLE
from bench.peers.rig import ProcessTree, Server, environment, has_own_network
from bench.peers.workload import CODECS, warm_up, write_graph
from edge.transports.transport import TRANSPORTS
from ops.processes.child import cli_flags
from ops.processes.deployment import Deployment
from shared.errors import SkylaneError
from shared.imaging.codec import MASK_CODECS
from shared.network.endpoint import free_ports

OURS = "skylane"
NAMES = (OURS, *PEERS)
ALL = "all"
SCENARIOS = {name: STUDIED[name] for name in ("cold_start", "same_image", "different_images", "mixed_sizes")}

_ENGINE = "tensorflow"  # The engine that runs the peers' function.
_CALL = "grpc"  # A plain call with grpcio.
_VEHICLE = "grpc by a vehicle"  # The same endpoint with the vehicle's transport.
_READY_S = 120.0


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """Servers, images and number of calls of a comparison."""

    bag: Path = harness.bag()
    models: Path = harness.models()
    model: str = harness.option(
        "road-small", show_default=True, help="Frozen graph for segmentation or classification."
    )
    codec: str = harness.option("both", type=click.Choice([*CODECS, "both"]), show_default=True)
    rounds: int = harness.rounds(5)
    frames: int = harness.frames(20, text="Calls of a turn; twice as many with several clients.")
    clients: int = harness.number(8, 2, 64, "Number of clients in throughput turns.")
    wanted_scenarios: tuple[str, ...] = harness.choices(
        (*SCENARIOS, ALL),
        (),
        "Scenario of the comparison of 2022 to measure instead of the serving overhead (repeatable). JPEG only.",
        "--scenario",
    )
    mask_codec: str = harness.option(
        "raw",  # The peers also send uncompressed masks; no slow link is involved.
        type=click.Choice(list(MASK_CODECS)),
        show_default=True,
        help="Encoding of Skylane's results; the peers send theirs uncompressed.",
    )
    names: tuple[str, ...] = NAMES
    turn_s: float = 30.0  # Maximum duration of half a turn; slow servers get fewer calls.

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs to measure."""
        return CODECS if self.codec == "both" else (self.codec,)

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of SCENARIOS; empty for the comparison of the serving overhead."""
        return tuple(name for name in SCENARIOS if {name, ALL} & set(self.wanted_scenarios))


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
            found = self._start_worker(stack, ways, is_cold=is_cold)
        else:
            found = self._start_peer(name, stack, is_cold=is_cold)
        found[0].tree.freeze()
        return [each for each in found if ways is None or each.way in ways]

    def _start_worker(self, stack: ExitStack, ways: Sequence[str] | None, *, is_cold: bool) -> list[PeerEndpoint]:
        plan = self._plan
        transports = [name for name in TRANSPORTS if ways is None or any(way.split()[0] == name for way in ways)]
        flags = cli_flags(engine=_ENGINE, warm_up=0 if is_cold else None)
        deployment = stack.enter_context(
            Deployment(models=plan.models, model=plan.model, transports=transports, flags=flags)
        )
        tree = ProcessTree([deployment.worker.pid, deployment.broker.pid])
        stack.callback(tree.thaw)  # Frozen processes do not react to the signal to end.
        found = []
        for name in transports:
            if name == _CALL:
                call = partial(CallClient, deployment.address(_CALL), plan.mask_codec)
                found.append(PeerEndpoint(OURS, _CALL, call, tree))
            vehicle = partial(SkylaneClient, deployment, name, plan.model, plan.mask_codec)
            found.append(PeerEndpoint(OURS, _VEHICLE if name == _CALL else name, vehicle, tree))
        return found

    def _start_peer(self, name: str, stack: ExitStack, *, is_cold: bool) -> list[PeerEndpoint]:
        peer = PEERS[name]
        if peer.is_alone and not has_own_network():
            raise PeerError("it listens on every address of the machine: run as root, to use a network namespace")
        made = environment(name)
        made.check()
        self.versions[name] = f"{peer.library} {made.version(peer.library)}"
        folder = self._folder / name
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # The next start must not find old files.
        setup = ServerSetup(made, folder, free_ports(2))
        variables = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{made.programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),  # Caches; the next two variables are for sockets.
            "TMPDIR": str(folder),
            "TEMP": str(folder),
            GRAPH_VARIABLE: str(self._graph()),
            **peer.variables,
        }
        server = stack.enter_context(Server(peer.command(setup), folder, variables, made.server_log))
        connects = {way: partial(way.connect, setup) for way in peer.ways}
        if is_cold:
            attempt = partial(check_ready, setup.ports[peer.ready_port], peer.ready_path)
        else:
            attempt = partial(ask_once, connects[peer.ways[0]], self._job)
        server.wait(attempt, _READY_S)
        return [
            PeerEndpoint(name, way.name, connect, server.tree, way.over_tcp, peer.is_floor)
            for way, connect in connects.items()
        ]

    def _graph(self) -> Path:
        """Returns the file with the graph of Skylane's engine."""
        path = self._folder / "graph.pb"
        if not path.exists():
            write_graph(self._plan.models, self._plan.model, path)
        return path


def start_all(
    plan: PeerPlan, starter: Starter, work: Iterable[Sequence[Job]], run: BenchRun
) -> tuple[dict[str, PeerEndpoint], dict[str, str]]:
    """Starts the plan's servers until `run` ends, and calls each endpoint until it gets no faster.

    Returns the endpoints by name, and the reasons why servers or endpoints are skipped.

    Raises:
        PeerError: no server can be started.
    """
    endpoints: dict[str, PeerEndpoint] = {}
    skipped: dict[str, str] = {}
    for server in plan.names:
        run.step(f"starting {server}")
        with ExitStack() as attempt:
            try:
                found = starter.start(server, attempt)
            except SkylaneError as error:
                skipped[server] = str(error)
                continue
            run.enter_context(attempt.pop_all())
        for endpoint in found:
            run.step(f"warming up {endpoint.name}")
            try:
                with endpoint.awake():
                    for each in work:
                        warm_up(endpoint.connect, each, plan.turn_s)
            except SkylaneError as error:
                skipped[endpoint.name] = str(error)
            else:
                endpoints[endpoint.name] = endpoint
    if not endpoints:
        raise nothing_to_measure(skipped)
    return endpoints, skipped


def nothing_to_measure(skipped: Mapping[str, str]) -> PeerError:
    """Returns the error that all servers were skipped, with the reasons."""
    return PeerError("no server to measure: " + "; ".join(f"{who}: {why}" for who, why in skipped.items()))
