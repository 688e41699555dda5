"""All doors of a worker as one: what is served is told at each."""

from collections.abc import Collection

from cloud.models.model_swap import Frontend
from shared.messages.model_card import ModelCard


class Frontends:
    """Does at every door what `cloud.models.model_swap.Frontend` says; the first is the one that may refuse."""

    def __init__(self, *doors: Frontend) -> None:
        self._doors = doors

    def check(self, cards: Collection[ModelCard]) -> None:
        """See Frontend."""
        for door in self._doors:
            door.check(cards)

    def admit(self, model: str) -> None:
        """See Frontend."""
        for door in self._doors:
            door.admit(model)

    def dismiss(self, model: str) -> None:
        """See Frontend."""
        for door in self._doors:
            door.dismiss(model)

    def announce(self) -> None:
        """See Frontend."""
        for door in self._doors:
            door.announce()
