"""The table of compared servers: how each is started, as documented by its authors, and its transports."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.clients import Client, FloorClient, HttpClient, SharedMemoryClient, TensorClient
from bench.peers.function import MODEL
from bench.peers.rig import Environment

_SERVERS = "bench.peers.servers"
_OPEN_INFERENCE_READY = f"/v2/models/{MODEL}/ready"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """Resources of one server in a run."""

    environment: Environment
    folder: Path  # Folder for settings, caches and the log.
    ports: list[int]  # Free ports: HTTP and gRPC.


@dataclass(frozen=True, slots=True)
class Way:
    """A transport between a client and a server."""

    name: str  # "shm": shared memory.
    connect: Callable[[ServerSetup], Client]
    over_tcp: bool = True


@dataclass(frozen=True, slots=True)
class Peer:
    """A model server."""

    title: str
    library: str  # The library whose version is reported.
    command: Callable[[ServerSetup], list[str]]
    ways: tuple[Way, ...]
    ready_path: str = ""  # HTTP path that answers 200 when the model is loaded, before the first inference.
    ready_port: int = 0  # Index of the port.
    variables: Mapping[str, str] = field(default_factory=dict)  # Environment variables.
    is_alone: bool = False  # Whether it listens on every address, so that it only runs in a network namespace.
    is_floor: bool = False  # Whether it is the bare gRPC server, the lower limit of a gRPC call.


def _module(name: str) -> Callable[[ServerSetup], list[str]]:
    """Returns the command that runs a module of `bench.peers.servers` with its ports as arguments."""
    return lambda setup: [
        str(setup.environment.python),
        "-m",
        f"{_SERVERS}.{name}",
        *map(str, setup.ports),
    ]


def _bentoml(setup: ServerSetup) -> list[str]:
    served = ["serve", f"{_SERVERS}.bentoml_server:Road", "--host", "127.0.0.1", "--port", str(setup.ports[0])]
    return [str(setup.environment.programs / "bentoml"), *served]


def _mlserver(setup: ServerSetup) -> list[str]:
    http_port, grpc_port = setup.ports
    settings = {
        "host": "127.0.0.1",
        "http_port": http_port,
        "grpc_port": grpc_port,
        "parallel_workers": 0,  # With more it does not start: multiprocessing in its workers fails.
        "metrics_endpoint": None,
        "debug": False,
    }
    model = {"name": MODEL, "implementation": f"{_SERVERS}.mlserver_model.Road"}
    (setup.folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (setup.folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    return [str(setup.environment.programs / "mlserver"), "start", str(setup.folder)]


def _http(path: str) -> Way:
    return Way("http", lambda setup: HttpClient(setup.ports[0], path))


PEERS = {
    "triton": Peer(
        "Triton",
        "nvidia-pytriton",
        _module("triton_server"),
        (
            Way("grpc", lambda setup: TensorClient("grpc", setup.ports[1])),
            Way("http", lambda setup: TensorClient("http", setup.ports[0])),
            Way("shm", lambda setup: SharedMemoryClient(setup.ports[1]), over_tcp=False),
        ),
        _OPEN_INFERENCE_READY,
    ),
    "ray": Peer(
        "Ray Serve",
        "ray",
        _module("ray_server"),
        (_http("/"),),
        "/ready",
        variables={"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
        ready_port=1,
        is_alone=True,
    ),
    "bentoml": Peer(
        "BentoML",
        "bentoml",
        _bentoml,
        (_http("/predict"),),
        "/readyz",
        variables={"BENTOML_DO_NOT_TRACK": "True"},
    ),
    "litserve": Peer("LitServe", "litserve", _module("litserve_server"), (_http("/predict"),), "/health"),
    "mlserver": Peer(
        "MLServer",
        "mlserver",
        _mlserver,
        (Way("grpc", lambda setup: TensorClient("grpc", setup.ports[1], as_element=True)),),
        _OPEN_INFERENCE_READY,
    ),
    "grpcio": Peer(
        "bare gRPC",
        "grpcio",
        _module("grpcio_server"),
        (Way("grpc", lambda setup: FloorClient(setup.ports[1])),),
        is_floor=True,
    ),
}
