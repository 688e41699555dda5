"""The workers a vehicle knows of, by what they announce."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from shared import clock
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError, suggestion
from shared.logs import get_logger
from shared.messages import topics
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, unpack_status
from shared.mqtt.bus import Delivery

_LOG = get_logger("edge")
_MAX_WORKERS = 256


class NoWorkerError(SkylaneError):
    """No worker serves the model. `is_final`: nor will one, as those that were asked refuse us."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker as last announced."""

    name: str
    status: NodeStatus

    def card(self, model: str, version: str | None = None) -> ModelCard | None:
        """Its card of a model, while it serves it; of the version it takes for current, its first, where none is named."""
        return next(
            (card for card in self.cards if card.name == model and version in (None, card.version)),
            None,
        )

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """What it serves; nothing unless it is online."""
        return self.status.cards if self.status.state is NodeState.ONLINE else ()

    def is_another_process_than(self, other: "KnownWorker") -> bool:
        """Whether the process that was known by this name is gone, and did not say goodbye as one does that drains."""
        return self.status.session != other.status.session or self.status.state is NodeState.OFFLINE

    def is_gone_before(self, other: "KnownWorker") -> bool:
        """Whether it is the late goodbye, or the will, of a process that the other one has followed under its name."""
        return self.status.state is NodeState.OFFLINE and self.status.session != other.status.session


class WorkerDirectory:
    """Follows the workers' announcements, and logs who joins, leaves and changes its models."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._known: dict[str, KnownWorker] = {}
        self._departed: dict[
            str, tuple[KnownWorker, int]
        ] = {}  # The last process of a name that went while online; when.
        self._lost_all_ns = 0

    def announced(self, delivery: Delivery) -> None:
        """Take an announcement in; a broken one is as good as none. Runs on the network thread."""
        names = topics.WORKER_STATUS.names_in(delivery.topic)
        if names is not None:
            self.told(names["worker"], delivery.payload)

    def told(self, name: str, payload: Buffer) -> None:
        """Take in what the worker of that name announces; a broken announcement is as good as none."""
        with self._condition:
            try:
                worker = KnownWorker(name, unpack_status(payload))
            except MessageError:
                self._known.pop(name, None)
            else:
                before = self._known.get(name)
                if before is not None and worker.is_gone_before(before):
                    return
                if before is not None and before.cards and worker.is_another_process_than(before):
                    self._depart(before)
                # The broker retains the last word of every name there ever was: who is offline takes no one's place.
                if worker.status.state is NodeState.OFFLINE:
                    self._known.pop(name, None)
                    _log_change(before, worker)
                elif before is not None or len(self._known) < _MAX_WORKERS:
                    self._known[name] = worker
                    _log_change(before, worker)
            self._condition.notify_all()

    def left(self, name: str, *, is_drained: bool = False) -> None:
        """A worker that no broker speaks for can be reached no more. `is_drained`: it answers what it has."""
        with self._condition:
            worker = self._known.pop(name, None)
            if worker is not None:
                _LOG.log(logging.INFO if is_drained else logging.WARNING, "worker left", worker=name)
            if worker is not None and worker.cards and not is_drained:
                self._depart(worker)
            self._condition.notify_all()

    def broke(self, name: str) -> None:
        """What was on its way to or from a worker may be lost, though it is there."""
        with self._condition:
            if worker := self._known.get(name):
                self._depart(worker)
            self._condition.notify_all()

    def _depart(self, worker: KnownWorker) -> None:
        self._departed.pop(worker.name, None)
        if len(self._departed) >= _MAX_WORKERS:
            del self._departed[next(iter(self._departed))]  # The one that went first.
        self._departed[worker.name] = (worker, clock.now_ns())

    def forget(self) -> None:
        """Know nobody any more: after a reconnect the broker says again who is there, and a restarted one knows best."""
        with self._condition:
            self._known.clear()
            self._departed.clear()
            self._lost_all_ns = clock.now_ns()
            self._condition.notify_all()

    def serves(self, model: str, version: str | None = None) -> bool:
        """Whether any worker that is online serves the model."""
        return self._card(model, version) is not None

    def online(self, model: str, version: str | None = None) -> list[tuple[str, str]]:
        """The workers that serve the model, each with the session of its process."""
        with self._condition:
            return [(worker.name, worker.status.session) for worker in self._serving(model, version)]

    def last_failure_ns(
        self, model: str, version: str | None = None, *, after_ns: int = 0, timeout_s: float = 0.0
    ) -> int:
        """When a worker of the model last went without draining, or the connection did with all that was on its way.

        0 where none has. Waits at most `timeout_s` for one that goes later than `after_ns`.
        """

        def last_ns() -> int:
            gone = (at_ns for worker, at_ns in self._departed.values() if worker.card(model, version))
            return max(self._lost_all_ns, *gone, 0)

        with self._condition:
            self._condition.wait_for(lambda: last_ns() > after_ns, timeout_s)
            return last_ns()

    def wait_for_card(self, model: str, timeout_s: float, version: str | None = None) -> ModelCard:
        """The model's card, as soon as a worker announces it.

        Raises:
            NoWorkerError: none does in time; the message names the models that are served.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._card(model, version), timeout_s):
                raise NoWorkerError(self._why_none(model, version, timeout_s))
            card = self._card(model, version)
        assert card is not None
        return card

    def wait_until_serves(self, model: str, timeout_s: float, version: str | None = None) -> bool:
        """Wait until some worker serves the model; False if none does in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._card(model, version) is not None, timeout_s)

    def _serving(self, model: str, version: str | None) -> Iterator[KnownWorker]:
        return (worker for worker in list(self._known.values()) if worker.card(model, version))

    def _card(self, model: str, version: str | None) -> ModelCard | None:
        return next((worker.card(model, version) for worker in self._serving(model, version)), None)

    def _why_none(self, model: str, version: str | None, timeout_s: float) -> str:
        cards = [card for worker in self._known.values() for card in worker.cards]
        versions = sorted({card.version for card in cards if card.name == model})
        if versions:
            return f"no worker serves version {version!r} of model {model!r}: ask for {' or '.join(versions)}"
        if cards:
            return f"no worker serves model {model!r}{suggestion(model, {card.name for card in cards})}"
        return f"no worker is online after {timeout_s:g} s: start one with 'skylane cloud serve'"


def _log_change(before: KnownWorker | None, now: KnownWorker) -> None:
    """Logs what an announcement changes of what was known of a worker."""
    state, fields = now.status.state, {"worker": now.name, "session": now.status.session}
    models = [f"{card.name} {card.version}" for card in now.cards]
    if before is None:
        if state is NodeState.ONLINE:
            _LOG.info("worker joined", **fields, models=models)
    elif state is NodeState.OFFLINE:
        is_drained = before.status.state is NodeState.STOPPING
        _LOG.log(logging.INFO if is_drained else logging.WARNING, "worker left", **fields)
    elif before.status.session != now.status.session:
        _LOG.warning("worker restarted", **fields, models=models)
    elif state is NodeState.STOPPING and before.status.state is NodeState.ONLINE:
        _LOG.info("worker drains", **fields)
    elif before.status.cards != now.status.cards:
        _LOG.info("worker changed its models", **fields, models=models)
