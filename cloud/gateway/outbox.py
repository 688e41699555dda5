"""What leaves on a connection of HTTP/2: the answers of its calls, as far as their caller lets them, and words between them."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from cloud.gateway.wires import Wire
from shared import http2
from shared.compression import Buffer
from shared.http2 import Cutter, Http2Error, Kind

_MOST_WORDS = 1_024  # That wait behind an answer which is not taken.
_SLICE_BYTES = 1 << 20  # Of one answer, before another has its turn.
_ALL = 0  # In the place of a call's number.

HeldUp = Callable[[], AbstractContextManager[None]]


class GoneError(Exception):
    """A call is over, and nothing more is sent of it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is to be sent of a call."""

    parts: Sequence[Buffer] = ()  # Of its body, with
    first: Sequence[Buffer] = ()  # frames before it, and
    last: Sequence[Buffer] = ()  # behind it.
    on_last: Callable[[], None] = lambda: None  # Told just before the last of them.


class Outbox:
    """Any thread may call it."""

    def __init__(self, wire: Wire, held_up: HeldUp) -> None:
        """`held_up`: entered while the caller does not take our words."""
        self.sent_bytes = 0  # Of bodies.
        self._wire, self._held_up = wire, held_up
        self._turns = _Turns()
        self._words: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._largest_frame = http2.LEAST_FRAME  # Bytes behind a head.
        self._initial_window = http2.FIRST_WINDOW
        self._windows = {_ALL: http2.FIRST_WINDOW}  # Bytes that may go out, by call; those of calls that are not over.
        self._begun: set[int] = set()  # Calls of which something has gone out.
        self._blocked: set[int] = set()  # Calls whose answer the network does not take, in the middle of a frame.
        self._shut: set[int] = set()  # Calls whose answer waits for its caller, between two frames.

    def open(self, stream: int) -> None:
        """Let a call be answered from now on."""
        with self._changed:
            self._windows[stream] = self._initial_window

    def drop(self, stream: int) -> bool:
        """Let nothing more of a call go out; whether something has."""
        with self._changed:
            self._windows.pop(stream, None)
            self._changed.notify_all()
            has_begun = stream in self._begun
            self._begun.discard(stream)
            return has_begun

    def widen(self, stream: int, count: int) -> None:
        """Let so many bytes more out, of a call or, 0, of all.

        Raises:
            Http2Error: that is beyond all bounds.
        """
        with self._changed:
            self._widen(stream, count)
            self._changed.notify_all()

    def agree(self, initial_window: int | None, largest_frame: int | None) -> None:
        """Keep to what the caller has set from now on, and say so ahead of all that does.

        Of calls under way more or fewer bytes may go out than before.

        Raises:
            Http2Error: that is beyond all bounds.
            OSError: as `say`.
        """
        with self._changed:
            if initial_window is not None:
                for stream in self._windows.keys() - {_ALL}:
                    self._widen(stream, initial_window - self._initial_window)
                self._initial_window = initial_window
            self._largest_frame = largest_frame or self._largest_frame
            self._words.append(http2.frame(Kind.SETTINGS, http2.ACKNOWLEDGES, 0))
            self._changed.notify_all()
        self.say()

    def is_blocked(self, stream: int) -> bool:
        """Whether nothing can be said behind what is being sent of a call, for the network takes none of it."""
        return stream in self._blocked

    def is_shut(self, stream: int) -> bool:
        """Whether a call's answer waits for its caller to let it out."""
        return stream in self._shut

    def say(self, *words: bytes) -> None:
        """Send small frames that belong to no body; where something is being sent, its thread does it behind that.

        It may last as long as the network takes nothing.

        Raises:
            OSError: the connection is broken, or its peer makes us speak and does not listen.
        """
        if len(self._words) > _MOST_WORDS:
            self._wire.cut()
            raise ConnectionAbortedError("it asks, and does not listen")
        self._words.extend(words)
        while self._words and self._turns.take_free():
            try:
                self._wire.send(self._waiting_words(), self._held_up)
            finally:
                self._turns.give()

    def send(self, stream: int, outgoing: Outgoing, held_up: HeldUp) -> None:
        """Send what belongs to a call, slice by slice; between them others have their turn.

        `held_up`: entered from the first time on that the caller takes nothing.

        Raises:
            GoneError: the call is over.
            OSError: the connection is broken.
        """
        cutter, left = Cutter(outgoing.parts), sum(map(len, outgoing.parts))
        going = list(outgoing.first)
        most = 0 if going and left >= http2.WORTH_WAKING_FOR else _SLICE_BYTES
        with ExitStack() as held:
            waits = _Once(held, held_up)
            while True:
                self._turns.take()
                try:
                    words, sizes = self._let_out(stream, min(left, most))
                    left -= sum(sizes)
                    going = [*words, *going, *_framed(stream, cutter, sizes)]
                    if not left:
                        outgoing.on_last()
                        going += outgoing.last
                    self._wire.send(going, lambda: self._told_blocked(stream, waits))
                finally:
                    self._turns.give()
                    if self._words:
                        self.say()
                if not left:
                    return
                going = []
                if most and not sizes:
                    self._await_window(stream, waits)
                most = _SLICE_BYTES

    def cut(self) -> None:
        """End the connection."""
        self._wire.cut()

    def _let_out(self, stream: int, most: int) -> tuple[list[Buffer], list[int]]:
        """Take so many bytes of the windows, or fewer: what has to be said ahead of them, and the sizes of their frames."""
        with self._changed:
            if stream not in self._windows:  # It has ended since, and whoever ended it has said so.
                raise GoneError
            self._begun.add(stream)
            size = max(0, min(most, self._windows[_ALL], self._windows[stream]))
            self._windows[_ALL] -= size
            self._windows[stream] -= size
            self.sent_bytes += size
            whole, rest = divmod(size, self._largest_frame)
            return self._waiting_words(), [self._largest_frame] * whole + [rest] * bool(rest)

    def _await_window(self, stream: int, waits: "_Once") -> None:
        def can_go_on() -> bool:
            return stream not in self._windows or min(self._windows[_ALL], self._windows[stream]) > 0

        waits.enter()
        self._shut.add(stream)
        try:
            with self._changed:
                self._changed.wait_for(can_go_on)
        finally:
            self._shut.discard(stream)

    @contextmanager
    def _told_blocked(self, stream: int, waits: "_Once") -> Iterator[None]:
        waits.enter()
        self._blocked.add(stream)
        try:
            yield
        finally:
            self._blocked.discard(stream)

    def _waiting_words(self) -> list[Buffer]:
        return [self._words.popleft() for _ in range(len(self._words))]

    def _widen(self, stream: int, count: int) -> None:
        if stream not in self._windows:
            return
        self._windows[stream] += count
        if self._windows[stream] > http2.LARGEST:
            raise Http2Error("a window beyond all bounds", code=http2.Code.FLOW_CONTROL)


def _framed(stream: int, cutter: Cutter, sizes: Sequence[int]) -> list[Buffer]:
    frames: list[Buffer] = []
    for size in sizes:
        frames += (http2.head(size, Kind.DATA, 0, stream), *cutter.cut(size))
    return frames


class _Once:
    """Enters something the first time that it is asked to."""

    def __init__(self, stack: ExitStack, enter: HeldUp) -> None:
        self._stack = stack
        self._enter: HeldUp | None = enter

    def enter(self) -> None:
        enter, self._enter = self._enter, None
        if enter is not None:
            self._stack.enter_context(enter())


class _Turns:
    """A lock that threads get in the order in which they came for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()

    def take_free(self) -> bool:
        """Take it, if nobody has it."""
        with self._lock:
            is_free, self._is_taken = not self._is_taken, True
            return is_free

    def take(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def give(self) -> None:
        with self._lock:
            if self._waiting:  # It stays taken, by the next.
                self._waiting.popleft().release()
            else:
                self._is_taken = False
