"""HTTP/2 (RFC 9113) for a caller that makes one call at a time on a connection.

A library copies a frame's megabytes several times. Here they go from where they lie to the wire, and an answer's from the
wire to where they will be read.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from edge.transports.wire import Wire
from shared import http2
from shared.compression import Buffer
from shared.header_lists import HeaderLists
from shared.http2 import MAX_HEADERS, Code, Cutter, Http2Error, Kind, Setting


class Body(Protocol):
    """Where the bytes of an answer are to lie. What it raises ends the call."""

    def begin(self, fields: Mapping[str, str]) -> None:
        """Hear the answer's header fields, before its first byte."""

    def room(self) -> memoryview:
        """Where the next ones belong, not empty."""

    def took(self, count: int) -> None:
        """So many have come there."""


class Connection:
    """The caller's end of one. After anything that it raises, Http2Error, OSError or a body's own, it is of no more use."""

    def __init__(self, wire: Wire) -> None:
        """Greet, and wait for the other end's greeting."""
        self.wire = wire
        self.is_sent = True  # The whole of the last call.
        self._lists = HeaderLists()
        self._head = memoryview(bytearray(http2.HEAD_BYTES))
        self._stream = -1  # Of the last call; a caller's numbers are odd.
        self._body: Body | None = None  # Of the call under way; None: none is.
        self._fields: dict[str, str] = {}  # Of its answer.
        self._block: bytearray | None = None  # A header list that is not whole yet,
        self._is_last = False  # and whether nothing follows it.
        self._is_left = False  # The other end takes no more calls.
        self._window = self._initial_window = self._shared_window = http2.FIRST_WINDOW  # Bytes that may go out:
        self._largest_frame = http2.LEAST_FRAME  # of the call, of any at its start, of all of them, of a frame.
        self._untold = 0  # Bytes that came in, and have not been allowed anew.
        wire.send([_GREETING])
        wire.fill(self._head)
        if self._head[3] != Kind.SETTINGS or self._head[4] & http2.ACKNOWLEDGES:
            raise Http2Error("it does not greet in HTTP/2")
        self._take()

    @property
    def is_spent(self) -> bool:
        """Whether no other call can be made."""
        return self._is_left or not self.is_sent or self._body is not None or self._stream > http2.LARGEST - 2

    def hear(self) -> None:
        """Take what has come between two calls: windows, pings, perhaps a farewell."""
        while came := self.wire.take(self._head):
            self.wire.fill(self._head[came:])
            self._take()

    def exchange(self, block: bytes, parts: Sequence[Buffer], body: Body) -> dict[str, str]:
        """Make a call, and wait for the whole answer; its header fields, with those behind its body.

        `block`: the call's header list, packed without indexing. `parts`: its body's, not empty altogether.
        """
        self._stream += 2
        self._window = self._initial_window
        self._fields, self._body, self.is_sent = {}, body, False
        self._send(block, parts)
        self._await_answer()
        return self._fields

    def _send(self, block: bytes, parts: Sequence[Buffer]) -> None:
        """Send a call, as far as the other end lets us, and for as long as it has not answered."""
        going = http2.header_frames(block, self._stream, self._largest_frame)
        left = sum(map(len, parts))
        cutter = Cutter(parts)
        if left >= http2.WORTH_WAKING_FOR:
            self.wire.send(going)
            going = []
        while left and self._body is not None:
            size = min(left, self._window, self._shared_window, self._largest_frame)
            if size <= 0:
                self.wire.send(going)
                going = []
                self._await()
                continue
            left -= size
            self._window -= size
            self._shared_window -= size
            going.append(http2.head(size, Kind.DATA, 0 if left else http2.ENDS_STREAM, self._stream))
            going.extend(cutter.cut(size))
        if self._body is not None:
            self._send_last(going)

    def _send_last(self, going: list[Buffer]) -> None:
        """Send the rest of a call. Who hangs up meanwhile may have answered before, and why is told there."""
        try:
            self.wire.send(going)
            self.is_sent = True
        except TimeoutError:
            raise
        except OSError as error:
            try:
                self._await_answer()
            except (OSError, Http2Error):
                raise error from None

    def _await_answer(self) -> None:
        while self._body is not None:
            self._await()

    def _await(self) -> None:
        self.wire.fill(self._head)
        self._take()

    def _take(self) -> None:
        """Take the rest of a frame whose head has come."""
        length, kind, flags, stream = http2.read_head(self._head)
        if (self._block is None) == (kind == Kind.CONTINUATION):
            raise Http2Error("a header list that is broken off, or goes on without having begun")
        if kind in _OF_A_CALL and (stream != self._stream or self._body is None):
            raise Http2Error("it answers what was not asked")
        if kind == Kind.DATA:
            self._take_data(length, flags)
            return
        while length > MAX_HEADERS:
            if kind in _KINDS:
                raise Http2Error(f"a frame of {length} bytes that is no data")
            length -= len(self._read(MAX_HEADERS))
        payload = self._read(length)
        if kind in _OF_A_CALL:
            self._take_headers(kind, flags, payload)
        else:
            self._take_word(kind, flags, stream, payload)

    def _take_word(self, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        """What the other end says beside its answers; of kinds that nobody knows, nothing."""
        is_told = not flags & http2.ACKNOWLEDGES
        match kind:
            case Kind.SETTINGS if is_told:
                self._take_settings(payload)
            case Kind.PING if is_told:
                self.wire.send([http2.pong(payload)])
            case Kind.WINDOW:
                self._widen(stream, http2.numbers(payload, 1)[0] & http2.LARGEST)
            case Kind.RESET if stream == self._stream and self._body is not None:
                (code,) = http2.numbers(payload, 1)
                is_refused = code == Code.REFUSED_STREAM and not self._fields
                raise Http2Error(f"it ends the call with code {code}", is_refused=is_refused, code=code)
            case Kind.GOING:
                self._is_left = True
                if self._body is not None and self._stream > http2.numbers(payload, 2)[0] & http2.LARGEST:
                    raise Http2Error("it takes no more calls", is_refused=not self._fields)
            case Kind.PROMISE:
                raise Http2Error("it promises what was not asked")

    def _take_data(self, length: int, flags: int) -> None:
        """The one frame that may be long."""
        body = self._body
        assert body is not None
        if not self._fields:
            raise Http2Error("an answer without headers")
        self._untold += length
        padding = 0
        if flags & http2.IS_PADDED and length:
            padding = self._read(1)[0]
            length -= 1 + padding
        while length > 0:
            room = body.room()[:length]
            self.wire.fill(room)
            body.took(len(room))
            length -= len(room)
        if length < 0:
            raise Http2Error("padding beyond its frame")
        self._read(padding)
        if self._untold > http2.LARGEST // 2:  # A call's own window no answer comes to the end of.
            self.wire.send([http2.window(0, self._untold)])
            self._untold = 0
        if flags & http2.ENDS_STREAM:
            self._body = None

    def _take_headers(self, kind: int, flags: int, payload: bytearray) -> None:
        """Add a header list to the answer's, once it is whole."""
        if kind == Kind.HEADERS:
            self._is_last = bool(flags & http2.ENDS_STREAM)
            payload = http2.unpadded(payload, flags)
        block = (self._block or bytearray()) + payload
        if len(block) > MAX_HEADERS:
            raise Http2Error(f"a header list of more than {MAX_HEADERS} bytes")
        self._block = block
        if not flags & http2.ENDS_HEADERS:
            return
        self._block = None
        fields = self._lists.read(bytes(block))
        if fields.get(":status", "").startswith("1") and not self._is_last:
            return  # The answer is still to come.
        if self._fields and not self._is_last:
            raise Http2Error("header lists without end")
        self._fields |= fields
        if self._is_last:
            self._body = None
        elif self._body is not None:
            self._body.begin(self._fields)

    def _take_settings(self, payload: bytearray) -> None:
        for setting, value in http2.read_settings(payload).items():
            if setting == Setting.INITIAL_WINDOW:
                self._widen(self._stream, value - self._initial_window)
                self._initial_window = value
            elif setting == Setting.LARGEST_FRAME:
                self._largest_frame = value
        self.wire.send([http2.head(0, Kind.SETTINGS, http2.ACKNOWLEDGES, 0)])

    def _widen(self, stream: int, count: int) -> None:
        """Let so many bytes more out, of a call or, stream 0, of all of them; a call's may have been taken back."""
        if stream == 0:
            self._shared_window += count
        elif stream == self._stream and self._body is not None:
            self._window += count
        if max(self._shared_window, self._window) > http2.LARGEST:
            raise Http2Error("a window beyond all bounds")

    def _read(self, length: int) -> bytearray:
        payload = bytearray(length)
        self.wire.fill(memoryview(payload))
        return payload


_KINDS = frozenset(Kind)
_OF_A_CALL = (Kind.DATA, Kind.HEADERS, Kind.CONTINUATION)


# That no answer is to wait for us: its body is bounded where it is taken.
_GREETING = b"".join((
    http2.PREFACE,
    http2.settings({
        Setting.ENABLE_PUSH: 0,
        Setting.INITIAL_WINDOW: http2.LARGEST,
        Setting.LARGEST_FRAME: http2.LARGEST_FRAME,
    }),
    http2.window(0, http2.LARGEST - http2.FIRST_WINDOW),
))  # fmt: skip
