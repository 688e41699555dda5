"""The slot: where due frames wait until the pipeline takes them."""

import threading
from collections import deque

from edge.reliability.ledger import FrameRecord
from shared.imaging.frames import Frame


class FrameQueue:
    """Holds the newest due frames of each camera; the one that a newer frame pushes out is handed back."""

    def __init__(self, depth: int = 1) -> None:
        """`depth`: how many frames of a camera may wait; with 1 the newest wins."""
        self._depth = depth
        self._condition = threading.Condition()
        self._waiting: dict[str, deque[tuple[FrameRecord, Frame]]] = {}  # Only cameras of which a frame waits.
        self._wanted = False
        self._closed = False

    def put(self, journey: FrameRecord, frame: Frame) -> FrameRecord | None:
        """Offer a due frame; returns the journey that it pushes out, the camera's oldest."""
        with self._condition:
            frames = self._waiting.setdefault(journey.camera, deque())
            oldest = frames.popleft()[0] if len(frames) == self._depth else None
            frames.append((journey, frame))
            self._condition.notify_all()
        return oldest

    def take(self) -> tuple[FrameRecord, Frame] | None:
        """Wait for a frame; the one that was due first is taken. None once the slot is closed and empty."""
        with self._condition:
            self._wanted = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._waiting or self._closed)
            self._wanted = False
            if not self._waiting:
                return None
            camera = min(self._waiting, key=lambda name: self._waiting[name][0][0].id.sequence)
            taken = self._waiting[camera].popleft()
            if not self._waiting[camera]:
                del self._waiting[camera]
            return taken

    def wait_until_wanted(self, stop: threading.Event) -> bool:
        """Wait until somebody waits for a frame and none is there; False when stopped."""
        with self._condition:
            while not self._condition.wait_for(lambda: self._wanted and not self._waiting, timeout=0.2):
                if stop.is_set() or self._closed:
                    return False
        return True

    def close(self) -> None:
        """No more frames will come."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def drain(self) -> list[FrameRecord]:
        """Take out all that waits, when nobody will take it any more."""
        with self._condition:
            waiting = [journey for frames in self._waiting.values() for journey, _ in frames]
            self._waiting.clear()
        return waiting
