"""Serving: the lanes that frames are inferred on, each a loaded version of a model with a batcher of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloud.batching import Batcher
from cloud.model import Model
from cloud.request import Request
from shared.fields import MessageError
from shared.model_card import ModelCard


@dataclass(frozen=True, slots=True)
class Lane:
    """A loaded version of a model, and the batcher that alone calls its engine."""

    model: Model
    batcher: Batcher

    @property
    def card(self) -> ModelCard:
        """The model's card."""
        return self.model.card

    def put(self, request: Request) -> None:
        """Queue a decoded frame; waits while the engine is behind."""
        self.batcher.put(request)


class Serving:
    """The lanes of a worker, by model and version."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = {lane.card.name: lane for lane in lanes}

    @property
    def lanes(self) -> Sequence[Lane]:
        """All of them."""
        return tuple(self._lanes.values())

    def cards(self) -> tuple[ModelCard, ...]:
        """What is served."""
        return tuple(lane.card for lane in self._lanes.values())

    def find(self, model: str, version: str | None) -> Lane:
        """The lane of a model's version; of its current one where none is named.

        Raises:
            MessageError: it is not served; the message names what is.
        """
        lane = self._lanes.get(model)
        if lane is None or version not in (None, lane.card.version):
            wanted = model if version is None else f"{model} version {version}"
            served = ", ".join(f"{card.name} version {card.version}" for card in self.cards())
            raise MessageError(f"{wanted} is not served here: ask for {served or 'another worker'}")
        return lane
