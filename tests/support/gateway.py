"""A worker with its gateway in this process, on free ports, for tests of its doors."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cloud.gateway.settings import GatewaySettings
from cloud.gateway.submission import Answered, Door
from cloud.models.loader import Loader
from cloud.models.model import Model
from cloud.node import CloudNode, WorkerSettings
from shared.mqtt.bus import MemoryBus

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Doors:
    """An open worker."""

    node: CloudNode
    bus: MemoryBus

    @property
    def grpc(self) -> str:
        """Where gRPC is."""
        return f"127.0.0.1:{self.node.ports['grpc']}"

    @property
    def http(self) -> str:
        """Where HTTP is."""
        return f"127.0.0.1:{self.node.ports['http']}"


@contextmanager
def open_gateway(
    *models: Model,
    loader: Loader | None = None,
    gateway: GatewaySettings | None = None,
    max_frames: int = 64,
    worker: str = "w",
    **settings: Any,
) -> Iterator[Doors]:
    """A worker that serves the models at every door, with operators let in; what it raises, this raises."""
    gateway = gateway or GatewaySettings(http="127.0.0.1:0", grpc="127.0.0.1:0")
    raised: list[BaseException] = []
    ready = threading.Event()
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        node = CloudNode(
            models,
            WorkerSettings(worker=worker, session="s9", gateway=gateway, max_frames=max_frames, **settings),
            loader=loader,
        )

        def serve() -> None:
            try:
                node.serve(bus, lambda: None, ready.set)
            except BaseException as error:  # noqa: BLE001  Told below.
                raised.append(error)
                ready.set()

        thread = threading.Thread(target=serve, name="worker")
        thread.start()
        try:
            assert ready.wait(WAIT_S)
            if not raised:
                yield Doors(node, bus)
        finally:
            node.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()
    if raised:
        raise raised[0]


def watch(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[Future[Answered]]:
    """The future of every frame that is handed in at a door from now on, as it comes."""
    handed_in: queue.SimpleQueue[Future[Answered]] = queue.SimpleQueue()
    put = Door.put

    def watched(*given: Any, **more: Any) -> Future[Answered]:
        future = put(*given, **more)
        handed_in.put(future)
        return future

    monkeypatch.setattr(Door, "put", watched)
    return handed_in
