"""Deadlines of calls: each is ended when its own has passed."""

import heapq
import itertools
import threading
import time
from typing import Protocol

_LONGEST_S = 3_600.0  # That is waited at a time.
_MOST_STALE = 64  # Deadlines of calls that are over, beside as many as there are calls.


class Ending(Protocol):
    """A call that ends at some time."""

    until_s: float | None  # By time.monotonic; None: it may last for ever.

    def expire(self) -> None:
        """End it; returns at once."""


class Deadlines:
    """Any thread may call it; one of its own ends what is late."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._calls: dict[int, Ending] = {}
        self._heap: list[tuple[float, int]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def start(self) -> None:
        """End what is late from now on."""
        self._thread.start()

    def add(self, call: Ending) -> int:
        """Watch over a call that has a deadline; the number to remove it by."""
        assert call.until_s is not None
        with self._changed:
            number = next(self._numbers)
            self._calls[number] = call
            heapq.heappush(self._heap, (call.until_s, number))
            if self._heap[0][1] == number:  # Whoever watches waits for a later one.
                self._changed.notify_all()
            return number

    def remove(self, number: int) -> None:
        """Watch no more."""
        with self._changed:
            self._calls.pop(number, None)
            if len(self._heap) > 2 * len(self._calls) + _MOST_STALE:
                self._heap = [entry for entry in self._heap if entry[1] in self._calls]
                heapq.heapify(self._heap)

    def close(self) -> None:
        """Watch over none."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        """The body of the thread."""
        while not self._closed:
            for call in self._await_late():
                call.expire()

    def _left_s(self) -> float | None:
        """Until the next deadline, though its call may be over: so a call of the same length wakes nobody."""
        return min(max(0.0, self._heap[0][0] - time.monotonic()), _LONGEST_S) if self._heap else None

    def _await_late(self) -> list[Ending]:
        with self._changed:
            if not self._closed:
                self._changed.wait(self._left_s())
            late = []
            while self._heap and self._heap[0][0] <= time.monotonic():
                call = self._calls.pop(heapq.heappop(self._heap)[1], None)
                if call is not None:
                    late.append(call)
            return late
