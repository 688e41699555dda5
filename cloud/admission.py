"""Admission: the one bounded queue that every frame enters by."""

import threading
from collections import deque

from cloud.request import Request


class Admission:
    """First in, first out; bounded by count and by bytes, so that overload costs an answer and not the memory."""

    def __init__(self, max_frames: int = 64, max_bytes: int = 256 << 20) -> None:
        self.max_frames = max_frames
        self._max_bytes = max_bytes
        self._condition = threading.Condition()
        self._queue: deque[Request] = deque()
        self._bytes = 0
        self._closed = False

    @property
    def depth(self) -> int:
        """How many frames wait."""
        return len(self._queue)

    def offer(self, request: Request) -> bool:
        """Take a frame in, or refuse it at once because the queue is full or closed."""
        with self._condition:
            full = len(self._queue) >= self.max_frames or self._bytes + len(request.payload) > self._max_bytes
            if full or self._closed:
                return False
            self._queue.append(request)
            self._bytes += len(request.payload)
            self._condition.notify()
        return True

    def take(self) -> Request | None:
        """Wait for a frame; None once closed and empty."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return None
            request = self._queue.popleft()
            self._bytes -= len(request.payload)
        return request

    def close(self) -> None:
        """Let no more frames in; those that wait are still handed out."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
