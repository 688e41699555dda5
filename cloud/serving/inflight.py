"""The unanswered: how many frames of each model are on their way through a worker."""

import threading
from collections import Counter


class Unanswered:
    """How many frames of each model came in and were not answered yet."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._condition = threading.Condition()

    def came(self, model: str) -> None:
        """A frame came in."""
        with self._condition:
            self._counts[model] += 1

    def left(self, model: str) -> None:
        """A frame was answered, or never will be."""
        with self._condition:
            self._counts[model] -= 1
            if not self._counts[model]:
                del self._counts[model]  # Anybody may name a model.
                self._condition.notify_all()

    def wait_until_none(self, model: str, timeout_s: float) -> None:
        """Wait until all have been answered, at most so long."""
        with self._condition:
            self._condition.wait_for(lambda: not self._counts[model], timeout_s)
