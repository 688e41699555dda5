"""A worker with models in memory, which an operator and a vehicle reach over a bus in memory."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from cloud.config import CloudConfig
from cloud.node import CloudNode
from shared.errors import SkylaneError, UnknownNameError
from shared.inference.model import Model
from shared.messages import topics
from shared.messages.control import ControlReply, ControlRequest, Verb, pack_request, unpack_reply
from shared.messages.frame import ResultMessage, pack_frame, unpack_result
from shared.messages.node_status import NodeStatus, unpack_status
from shared.models.repository import StoredModel
from shared.mqtt.bus import Bus, Properties
from tests.support.gateway import WAIT_S, memory_bus
from tests.support.tiny_model import CARD, Engine, frame, model


class FakeRepository:
    """A loader and repository of models in memory. A load waits for `gate`."""

    def __init__(self, **versions: tuple[str, ...]) -> None:
        self.stock = versions
        self.engines: dict[tuple[str, str], Engine] = {}  # The last engine of each version.
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

    def find(self, name: str, version: str | None = None) -> StoredModel:
        """See Repository."""
        if name not in self.stock:
            raise UnknownNameError("model", name, self.stock)
        manifest = model().manifest.with_labels(CARD.labels)
        manifest = manifest.model_copy(update={"version": version or self.stock[name][-1]})
        return StoredModel(name, Path(), Path(), manifest)

    def load(self, stored: StoredModel) -> Model:
        """See ModelLoader."""
        name, version = stored.name, stored.version
        self.began.set()
        assert self.gate.wait(WAIT_S)
        if (name, version) in self.broken:
            raise SkylaneError(f"{name} cannot be run")
        engine = self.engines[name, version] = Engine()
        return model(name=name, version=version, engine=engine)


class WorkerRig:
    """A running worker, an operator and a vehicle."""

    def __init__(
        self, bus: Bus, repository: FakeRepository, served: list[Model], config: CloudConfig, *, with_loader: bool
    ) -> None:
        self.bus = bus
        self.repository = repository
        loader: Any = repository if with_loader else None
        self.node = CloudNode(served, config, session="s9", loader=loader)
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
        """Publishes a frame as the vehicle."""
        self.bus.publish(
            topics.FRAMES.of(model=name, vehicle="car", camera="left"),
            pack_frame(frame(sequence, name, version)),
            qos=1,
            properties=Properties(correlation=str(frame(sequence).id).encode()),
        )

    def answer(self) -> ResultMessage:
        """Waits for the next reply to a frame."""
        return self.answers.get(timeout=WAIT_S)

    def ask(self, verb: Verb, name: str = "", version: str | None = None, *, keep: bool = False) -> str:
        """Sends a control request and returns its nonce."""
        nonce = f"n{next(self._nonces)}"
        request = ControlRequest("ops", nonce, verb, name, version, keep)
        self.bus.publish(topics.CONTROL.of(worker="w", verb=verb.value), pack_request(request), qos=1)
        return nonce

    def request(self, verb: Verb, name: str = "", version: str | None = None, *, keep: bool = False) -> ControlReply:
        """Sends a control request and waits for its reply."""
        nonce = self.ask(verb, name, version, keep=keep)
        reply = self.replies.get(timeout=WAIT_S)
        assert (reply.nonce, reply.worker) == (nonce, "w")
        return reply


@contextmanager
def open_worker(
    repository: FakeRepository,
    served: tuple[tuple[str, str], ...] = (("tiny", "1"),),
    bus: Bus | None = None,
    *,
    with_loader: bool = True,
    **settings: Any,
) -> Iterator[WorkerRig]:
    """A worker `w` that serves these models of the repository, until the block ends; on a bus in memory where none is given."""
    with nullcontext(bus) if bus else memory_bus() as carrier:
        models = [repository.load(repository.find(*key)) for key in served]
        repository.began.clear()
        rig = WorkerRig(carrier, repository, models, CloudConfig(worker="w", **settings), with_loader=with_loader)
        try:
            assert rig.ready.wait(WAIT_S)
            yield rig
        finally:
            repository.gate.set()
            rig.node.stop()
            rig.thread.join(WAIT_S)
            assert not rig.thread.is_alive()
