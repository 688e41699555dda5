"""The workers a vehicle knows of, by what they announce."""

import threading
from dataclasses import dataclass

from shared import topics
from shared.bus import Delivery
from shared.errors import SkylaneError, suggestion
from shared.fields import MessageError
from shared.messages import NodeState, NodeStatus, unpack_status
from shared.model_card import ModelCard

_MAX_WORKERS = 256


class NoWorkerError(SkylaneError):
    """No worker serves the model."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as last announced."""

    name: str
    status: NodeStatus

    def card(self, model: str) -> ModelCard | None:
        """Its card of a model, while it serves it."""
        if self.status.state is not NodeState.ONLINE:
            return None
        return next((card for card in self.status.cards if card.name == model), None)


class Workers:
    """Follows the workers' announcements."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._known: dict[str, Worker] = {}

    def announced(self, delivery: Delivery) -> None:
        """Take an announcement in; a broken one is as good as none. Runs on the network thread."""
        names = topics.WORKER_STATUS.names_in(delivery.topic)
        if names is None:
            return
        with self._condition:
            try:
                status = unpack_status(delivery.payload)
            except MessageError:
                self._known.pop(names["worker"], None)
            else:
                if names["worker"] in self._known or len(self._known) < _MAX_WORKERS:
                    self._known[names["worker"]] = Worker(names["worker"], status)
            self._condition.notify_all()

    def forget(self) -> None:
        """Know nobody any more: after a reconnect the broker says again who is there, and a restarted one knows best."""
        with self._condition:
            self._known.clear()

    def serves(self, model: str) -> bool:
        """Whether any worker that is online serves the model."""
        return self._card(model) is not None

    def online(self, model: str) -> list[tuple[str, str]]:
        """The workers that serve the model, each with the session of its process."""
        with self._condition:
            return [(worker.name, worker.status.session) for worker in self._known.values() if worker.card(model)]

    def wait_for_card(self, model: str, timeout_s: float) -> ModelCard:
        """The model's card, as soon as a worker announces it.

        Raises:
            NoWorkerError: none does in time; the message names the models that are served.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._card(model), timeout_s):
                served = {card.name for worker in self._known.values() for card in _online_cards(worker)}
                if served:
                    raise NoWorkerError(f"no worker serves model {model!r}{suggestion(model, served)}")
                raise NoWorkerError(f"no worker is online after {timeout_s:g} s: start one with 'skylane cloud serve'")
            card = self._card(model)
        assert card is not None
        return card

    def wait_until_serves(self, model: str, timeout_s: float) -> bool:
        """Wait until some worker serves the model; False if none does in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._card(model) is not None, timeout_s)

    def _card(self, model: str) -> ModelCard | None:
        return next((card for worker in list(self._known.values()) if (card := worker.card(model))), None)


def _online_cards(worker: Worker) -> tuple[ModelCard, ...]:
    return worker.status.cards if worker.status.state is NodeState.ONLINE else ()
