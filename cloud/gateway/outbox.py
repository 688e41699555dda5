"""What leaves on a connection of HTTP/2: the answers of its calls, as far as their caller lets them, and words between them."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from cloud.gateway.wires import Stuck, Wire
from shared import http2
from shared.compression import Buffer
from shared.http2 import Cutter, Http2Error, Kind

_MOST_WORDS = 1_024  # That wait behind an answer which is not taken.
_ALL = 0  # In the place of a call's number.


class GoneError(Exception):
    """A call is over, and nothing more is sent of it."""


class Outbox:
    """Any thread may call it."""

    def __init__(self, wire: Wire) -> None:
        self.largest_frame = http2.LEAST_FRAME  # Bytes behind a head.
        self._wire = wire
        self._sending = threading.Lock()
        self._words: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._initial_window = http2.FIRST_WINDOW
        self._windows = {_ALL: http2.FIRST_WINDOW}  # Bytes that may go out, by call; those of calls that are not over.
        self._stuck: set[int] = set()  # Calls whose answers do not go out.

    def open(self, stream: int) -> None:
        """Let a call be answered from now on."""
        with self._changed:
            self._windows[stream] = self._initial_window

    def drop(self, stream: int) -> None:
        """Let nothing more of a call go out."""
        with self._changed:
            self._windows.pop(stream, None)
            self._changed.notify_all()

    def widen(self, stream: int, count: int) -> None:
        """Let so many bytes more out, of a call or, 0, of all.

        Raises:
            Http2Error: that is beyond all bounds.
        """
        with self._changed:
            self._widen(stream, count)
            self._changed.notify_all()

    def set_initial_window(self, size: int) -> None:
        """Let so many out of each call; of those under way more or fewer than before.

        Raises:
            Http2Error: that is beyond all bounds.
        """
        with self._changed:
            for stream in self._windows.keys() - {_ALL}:
                self._widen(stream, size - self._initial_window)
            self._initial_window = size
            self._changed.notify_all()

    def is_stuck(self, stream: int) -> bool:
        """Whether a call's answer is being sent, and its caller takes nothing."""
        return stream in self._stuck

    def say(self, *words: bytes) -> None:
        """Send small frames that belong to no body; behind an answer that is being sent, its thread does it.

        Raises:
            OSError: the connection is broken, or its peer makes us speak and does not listen.
        """
        if len(self._words) > _MOST_WORDS:
            self._wire.cut()
            raise ConnectionAbortedError("it asks, and does not listen")
        self._words.extend(words)
        while self._words and self._sending.acquire(blocking=False):
            try:
                self._wire.send(self._waiting_words(), nullcontext)
            finally:
                self._sending.release()

    def send(
        self, stream: int, first: Sequence[Buffer], parts: Sequence[Buffer], last: Sequence[Buffer], stuck: Stuck
    ) -> None:
        """Send of a call what stands before a body, the body's parts, and what stands behind it.

        `stuck`: entered while the caller lets nothing out.

        Raises:
            GoneError: the call is over.
            OSError: the connection is broken.
        """
        going = list(first)
        cutter, left = Cutter(parts), sum(map(len, parts))
        while left:
            size = self._allowed(stream, left)
            if not size:
                self._write(stream, going, stuck)
                going = []
                self._await_window(stream, stuck)
                continue
            left -= size
            going += [http2.head(size, Kind.DATA, 0, stream), *cutter.cut(size)]
        self._write(stream, [*going, *last], stuck)

    def cut(self) -> None:
        """End the connection."""
        self._wire.cut()

    def _allowed(self, stream: int, most: int) -> int:
        """Take so many bytes of the windows, or fewer, as many as a frame may hold."""
        with self._changed:
            if stream not in self._windows:
                raise GoneError
            size = max(0, min(most, self._windows[_ALL], self._windows[stream], self.largest_frame))
            self._windows[_ALL] -= size
            self._windows[stream] -= size
            return size

    def _await_window(self, stream: int, stuck: Stuck) -> None:
        def can_go_on() -> bool:
            return stream not in self._windows or min(self._windows[_ALL], self._windows[stream]) > 0

        with stuck(), self._changed:
            self._changed.wait_for(can_go_on)

    def _write(self, stream: int, going: Sequence[Buffer], stuck: Stuck) -> None:
        if not self._sending.acquire(blocking=False):
            with self._told_stuck(stream, stuck):
                self._sending.acquire()
        try:
            if stream not in self._windows:  # It has ended since, and whoever ended it has said so.
                raise GoneError
            self._wire.send(going, lambda: self._told_stuck(stream, stuck))
        finally:
            self._sending.release()
        if self._words:
            self.say()

    @contextmanager
    def _told_stuck(self, stream: int, stuck: Stuck) -> Iterator[None]:
        with stuck():
            self._stuck.add(stream)
            try:
                yield
            finally:
                self._stuck.discard(stream)

    def _waiting_words(self) -> list[Buffer]:
        return [self._words.popleft() for _ in range(len(self._words))]

    def _widen(self, stream: int, count: int) -> None:
        if stream not in self._windows:
            return
        self._windows[stream] += count
        if self._windows[stream] > http2.LARGEST:
            raise Http2Error("a window beyond all bounds", code=http2.Code.FLOW_CONTROL)
