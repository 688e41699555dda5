"""A worker with its gateway in this process, on free ports."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from cloud.config import CloudConfig
from cloud.gateway.limits import DEFAULT_TIMEOUTS, GatewayTimeouts
from cloud.models.loader import ModelLoader
from cloud.node import DRAIN_S, CloudNode
from cloud.serving.submission import Answered, Submission
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, ResultMessage, pack_frame, unpack_result
from shared.messages.topics import FRAMES, MASKS
from shared.mqtt.bus import Bus, Properties
from tests.support.memory_bus import MemoryBus

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayWorker:
    """A running worker."""

    node: CloudNode
    bus: Any  # A MemoryBus, unless the test has given another one.

    @property
    def grpc(self) -> str:
        """Address of the gRPC server."""
        return f"127.0.0.1:{self.node.ports['grpc']}"

    @property
    def http(self) -> str:
        """Address of the HTTP server."""
        return f"127.0.0.1:{self.node.ports['http']}"


@contextmanager
def memory_bus() -> Iterator[MemoryBus]:
    """A bus in memory that spares the worker the check that it is the only one."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        yield bus


@contextmanager
def running(node: CloudNode, bus: Bus) -> Iterator[None]:
    """Serves in a thread until the block ends; raises the worker's exception."""
    raised: list[BaseException] = []
    ready = threading.Event()

    def serve() -> None:
        try:
            node.serve(bus, lambda: None, ready.set)
        except BaseException as error:  # noqa: BLE001  Raised below.
            raised.append(error)
            ready.set()

    thread = threading.Thread(target=serve, name=node.name)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        if not raised:
            yield
    finally:
        node.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


@contextmanager
def open_gateway(
    *models: Model,
    loader: ModelLoader | None = None,
    timeouts: GatewayTimeouts = DEFAULT_TIMEOUTS,
    max_frames: int = 64,
    max_message_bytes: int | None = None,
    worker: str = "w",
    drain_s: float = DRAIN_S,
    bus: Bus | None = None,
    **settings: Any,
) -> Iterator[GatewayWorker]:
    """Runs a worker that serves the models over a bus, by default one in memory, and over HTTP and gRPC unless `settings` name one.

    With `http=None`, it has neither of them.

    `max_message_bytes` may be below the least of the configuration. Raises the worker's exception.
    """
    if not settings.keys() & {"http", "grpc"}:
        settings |= {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}
    with nullcontext(bus) if bus else memory_bus() as carrier:
        config = CloudConfig(worker=worker, max_frames=max_frames, **settings)
        if max_message_bytes is not None:
            config = config.model_copy(update={"max_message_bytes": max_message_bytes})
        node = CloudNode(models, config, session="s9", loader=loader, timeouts=timeouts, drain_s=drain_s)
        with running(node, carrier):
            yield GatewayWorker(node, carrier)


class Sender:
    """A vehicle that sends frames over a bus and receives the replies."""

    def __init__(self, bus: Bus, vehicle: str = "car") -> None:
        self._bus = bus
        self._replies: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        bus.subscribe(
            MASKS.filter(vehicle=vehicle), 1, lambda delivery: self._replies.put(unpack_result(delivery.payload))
        )

    def send(self, *messages: FrameMessage) -> None:
        """Publishes frames."""
        for message in messages:
            topic = FRAMES.of(model=message.model, vehicle=message.id.vehicle, camera=message.id.camera)
            properties = Properties(correlation=str(message.id).encode())
            self._bus.publish(topic, pack_frame(message), qos=1, properties=properties)

    def replies(self, count: int) -> list[ResultMessage]:
        """Waits for the next replies."""
        return [self._replies.get(timeout=WAIT_S) for _ in range(count)]

    def answer_to(self, message: FrameMessage) -> ResultMessage:
        """Publishes a frame and waits for the next reply, which must be that to this frame."""
        self.send(message)
        (reply,) = self.replies(1)
        assert reply.id == message.id
        return reply


class Gate:
    """Blocks an engine at its next batch while the gate is closed; open at first."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()
        self._opened.set()

    def __call__(self) -> None:
        """Waits until the gate is open; the engine calls this for each batch."""
        self.reached.set()
        assert self._opened.wait(WAIT_S)

    def close(self) -> None:
        """Blocks the engine from its next batch on."""
        self._opened.clear()

    def open(self) -> None:
        """Lets the engine continue."""
        self._opened.set()


def watch_submissions(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[Future[Answered]]:
    """Returns a queue that receives the future of every frame submitted through the gateway."""
    submitted: queue.SimpleQueue[Future[Answered]] = queue.SimpleQueue()
    put: Callable[..., Future[Answered]] = Submission.put

    def watched(*arguments: Any, **options: Any) -> Future[Answered]:
        future = put(*arguments, **options)
        submitted.put(future)
        return future

    monkeypatch.setattr(Submission, "put", watched)
    return submitted
