"""The queue of due frames, from which the pipeline takes."""

import threading
from collections import deque

from edge.frame_record import FrameRecord
from shared.imaging.frames import Frame


class FrameQueue:
    """A bounded queue per camera; a new frame replaces the oldest one of its camera when the queue is full."""

    def __init__(self, depth: int = 1) -> None:
        """`depth`: number of frames per camera that may wait."""
        self._depth = depth
        self._condition = threading.Condition()
        self._waiting: dict[str, deque[tuple[FrameRecord, Frame]]] = {}  # Has no empty queues.
        self._wanted = False
        self._closed = False

    def put(self, record: FrameRecord, frame: Frame) -> FrameRecord | None:
        """Adds a frame; returns the record of the frame that it replaces, if any."""
        with self._condition:
            frames = self._waiting.setdefault(record.camera, deque())
            oldest = frames.popleft()[0] if len(frames) == self._depth else None
            frames.append((record, frame))
            self._condition.notify_all()
        return oldest

    def take(self) -> tuple[FrameRecord, Frame] | None:
        """Waits for a frame and returns the one that was due first; None once the queue is closed and empty."""
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
        """Waits until `take` waits and the queue is empty; returns False when stopped."""
        with self._condition:
            while not self._condition.wait_for(lambda: self._wanted and not self._waiting, timeout=0.2):
                if stop.is_set() or self._closed:
                    return False
        return True

    def close(self) -> None:
        """Ends the queue: `take` returns None after the last frame."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def drain(self) -> list[FrameRecord]:
        """Removes all waiting frames and returns their records."""
        with self._condition:
            waiting = [record for frames in self._waiting.values() for record, _ in frames]
            self._waiting.clear()
        return waiting
