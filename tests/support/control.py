"""A loader of models that need no library, and a worker that an operator and a vehicle talk to over a bus in memory."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

from cloud.models.model import Model
from cloud.node import CloudNode, WorkerSettings
from shared.errors import SkylaneError, UnknownNameError
from shared.messages import topics
from shared.messages.control import ControlReply, ControlRequest, Verb, pack_request, unpack_reply
from shared.messages.frame import ResultMessage, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeStatus, unpack_status
from shared.mqtt.bus import Bus, MemoryBus, Properties
from tests.support.tiny_model import Engine, frame, model

WAIT_S = 60.0


class Shelf:
    """What a loader and its repository are to a worker. A load waits for `gate`."""

    def __init__(self, **versions: tuple[str, ...]) -> None:
        self.stock = versions
        self.engines: dict[tuple[str, str], Engine] = {}  # The last one of each version.
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.broken: set[tuple[str, str]] = set()
        self.problems: dict[tuple[str, str | None], str] = {}
        self.repository = self

    def names(self) -> tuple[str, ...]:
        """See Repository."""
        return tuple(self.stock)

    def versions(self, name: str) -> tuple[str, ...]:
        """See Repository."""
        return self.stock[name]

    def card(self, name: str, version: str | None = None) -> ModelCard:
        """See Repository."""
        if name not in self.stock:
            raise UnknownNameError("model", name, self.stock)
        return model(name=name, version=version or self.stock[name][-1]).card

    def load(self, name: str, version: str | None = None) -> Model:
        """See Loader."""
        card = self.card(name, version)
        self.began.set()
        assert self.gate.wait(WAIT_S)
        if (name, card.version) in self.broken:
            raise SkylaneError(f"{name} cannot be run")
        engine = self.engines[name, card.version] = Engine()
        return model(name=name, version=card.version, engine=engine)


class Place:
    """A worker with a shelf, an operator and a vehicle."""

    def __init__(
        self, bus: Bus, shelf: Shelf, served: list[Model], settings: WorkerSettings, *, with_loader: bool
    ) -> None:
        self.bus = bus
        self.shelf = shelf
        loader: Any = shelf if with_loader else None
        self.node = CloudNode(served, settings, loader=loader)
        self.answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.statuses: queue.SimpleQueue[NodeStatus] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[ControlReply] = queue.SimpleQueue()
        self.ready = threading.Event()
        self._nonces = count()
        bus.subscribe(topics.MASKS.filter(), 1, lambda delivery: self.answers.put(unpack_result(delivery.payload)))
        bus.subscribe(
            topics.WORKER_STATUS.filter(), 1, lambda delivery: self.statuses.put(unpack_status(delivery.payload))
        )
        bus.subscribe(
            topics.REPLIES.filter(operator="ops"), 1, lambda delivery: self.replies.put(unpack_reply(delivery.payload))
        )
        self.thread = threading.Thread(target=self.node.serve, args=(bus, lambda: None, self.ready.set))
        self.thread.start()

    def send(self, sequence: int, name: str = "tiny", version: str | None = None) -> None:
        """A vehicle publishes a frame."""
        self.bus.publish(
            topics.FRAMES.of(model=name, vehicle="car", camera="left"),
            pack_frame(frame(sequence, name, version)),
            qos=1,
            properties=Properties(correlation=str(frame(sequence).id).encode()),
        )

    def answer(self) -> ResultMessage:
        """The next one."""
        return self.answers.get(timeout=WAIT_S)

    def ask(self, verb: Verb, name: str = "", version: str | None = None, *, keep: bool = False) -> str:
        """Send a request; returns its nonce."""
        nonce = f"n{next(self._nonces)}"
        request = ControlRequest("ops", nonce, verb, name, version, keep)
        self.bus.publish(topics.CONTROL.of(worker="w", verb=verb.value), pack_request(request), qos=1)
        return nonce

    def told(self, verb: Verb, name: str = "", version: str | None = None, *, keep: bool = False) -> ControlReply:
        """Send a request and wait for its reply."""
        nonce = self.ask(verb, name, version, keep=keep)
        reply = self.replies.get(timeout=WAIT_S)
        assert (reply.nonce, reply.worker) == (nonce, "w")
        return reply


@contextmanager
def _memory_bus() -> Iterator[MemoryBus]:
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        yield bus


@contextmanager
def open_worker(
    shelf: Shelf,
    served: tuple[tuple[str, str], ...] = (("tiny", "1"),),
    bus: Bus | None = None,
    *,
    with_loader: bool = True,
    **settings: Any,
) -> Iterator[Place]:
    """A worker `w` that serves these models of the shelf, until the block ends; on a bus in memory where none is given."""
    with nullcontext(bus) if bus else _memory_bus() as carrier:
        models = [shelf.load(*key) for key in served]
        shelf.began.clear()
        place = Place(
            carrier, shelf, models, WorkerSettings(worker="w", session="s9", **settings), with_loader=with_loader
        )
        try:
            assert place.ready.wait(WAIT_S)
            yield place
        finally:
            shelf.gate.set()
            place.node.stop()
            place.thread.join(WAIT_S)
            assert not place.thread.is_alive()
