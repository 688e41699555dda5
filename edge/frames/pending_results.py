"""The frames that may still get a result, so that the sinks know when they have all results up to a frame."""

import threading


class PendingResults:
    """Numbers of frames from their due time until they have ended without a result, or their result is with the sinks.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}  # In increasing order, because frames become due in this order.
        self._next = 0
        self._changed = threading.Condition()

    def add(self, sequence: int) -> None:
        """Adds the frame with the next sequence number."""
        with self._changed:
            self._numbers[sequence] = None
            self._next = sequence + 1

    def remove(self, sequence: int) -> None:
        """Removes a frame, if it is present."""
        with self._changed:
            self._numbers.pop(sequence, None)
            self._changed.notify_all()

    def first(self) -> int:
        """Returns the lowest number of a frame that may still get a result; without any, that of the next frame."""
        with self._changed:
            return self._first()

    def wait_until_within(self, frames: int, timeout_s: float) -> bool:
        """Waits until the first frame is among the last `frames` that were due; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._next - self._first() < frames, timeout_s)

    def _first(self) -> int:
        return next(iter(self._numbers), self._next)
