"""HTTP/2 (RFC 9113) for a caller that makes one call at a time on a connection.

A library copies a frame's megabytes several times. Here they go from where they lie to the wire, and an answer's from the
wire to where they will be read.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from hpack import Decoder, HPACKError

from edge.transports.wire import Wire
from shared.compression import Buffer

MAX_HEADERS = 65_536  # Bytes of an answer's header list, packed or not, and of any frame that is not data.

_MOST_KNOWN, _LONGEST_KNOWN = 16, 64  # Header lists that are remembered, and the bytes of one.
_HEAD = struct.Struct(">BHBBI")  # Of a frame: its length's high byte and the others, kind, flags, stream.
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_31_BITS = (1 << 31) - 1  # Of a stream's number, and of a window.
_LEAST_FRAME, _LARGEST_FRAME = 1 << 14, (1 << 24) - 1  # Bytes behind a frame's head, that both ends may agree on.
_FIRST_WINDOW = (1 << 16) - 1
_PRIORITY_BYTES, _PING_BYTES = 5, 8
_ENDS_STREAM = _ACKNOWLEDGES = 1  # Flags of a frame: of data and headers; of settings and pings;
_ENDS_HEADERS, _IS_PADDED, _HAS_PRIORITY = 4, 8, 32  # of headers, and the second of data.
_REFUSED_STREAM = 7  # An error code.
_FIRST_PLACE, _LAST_PLACE = 0x81, 0xFE  # In HPACK's table, each in one byte (RFC 7541, 6.1).


class _Kind(IntEnum):
    """Of a frame."""

    DATA = 0
    HEADERS = 1
    RESET = 3
    SETTINGS = 4
    PROMISE = 5
    PING = 6
    GOING = 7
    WINDOW = 8
    CONTINUATION = 9


class _Setting(IntEnum):
    """What one end tells the other of itself."""

    ENABLE_PUSH = 2
    INITIAL_WINDOW = 4
    LARGEST_FRAME = 5


class Http2Error(Exception):
    """The other end does not keep to the protocol, or ends the call."""

    def __init__(self, problem: str, *, is_refused: bool = False, code: int | None = None) -> None:
        """`is_refused`: it told that it has done nothing of the call, nor will. `code`: with which it ended the call."""
        self.is_refused, self.code = is_refused, code
        super().__init__(problem)


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
        self._decoder = Decoder(max_header_list_size=MAX_HEADERS)
        self._known: dict[bytes, Mapping[str, str]] = {}  # Header lists that say what they said before.
        self._head = memoryview(bytearray(_HEAD.size))
        self._stream = -1  # Of the last call; a caller's numbers are odd.
        self._body: Body | None = None  # Of the call under way; None: none is.
        self._fields: dict[str, str] = {}  # Of its answer.
        self._block: bytearray | None = None  # A header list that is not whole yet,
        self._is_last = False  # and whether nothing follows it.
        self._is_left = False  # The other end takes no more calls.
        self._window = self._initial_window = self._shared_window = _FIRST_WINDOW  # Bytes that may go out:
        self._largest_frame = _LEAST_FRAME  # of the call, of any at its start, of all of them, of a frame.
        self._untold = 0  # Bytes that came in, and have not been allowed anew.
        wire.send([_GREETING])
        wire.fill(self._head)
        if self._head[3] != _Kind.SETTINGS or self._head[4] & _ACKNOWLEDGES:
            raise Http2Error("it does not greet in HTTP/2")
        self._take()

    @property
    def is_spent(self) -> bool:
        """Whether no other call can be made."""
        return self._is_left or not self.is_sent or self._body is not None or self._stream > _31_BITS - 2

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
        going = self._block_frames(block)
        left = sum(map(len, parts))
        cutter = _Cutter(parts)
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
            going.append(_head(size, _Kind.DATA, 0 if left else _ENDS_STREAM, self._stream))
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

    def _block_frames(self, block: bytes) -> list[Buffer]:
        frames: list[Buffer] = []
        for at in range(0, len(block), self._largest_frame):
            piece = block[at : at + self._largest_frame]
            flags = _ENDS_HEADERS if at + len(piece) == len(block) else 0
            frames += [_head(len(piece), _Kind.CONTINUATION if at else _Kind.HEADERS, flags, self._stream), piece]
        return frames

    def _await_answer(self) -> None:
        while self._body is not None:
            self._await()

    def _await(self) -> None:
        self.wire.fill(self._head)
        self._take()

    def _take(self) -> None:
        """Take the rest of a frame whose head has come."""
        high, low, kind, flags, stream = _HEAD.unpack(self._head)
        length, stream = high << 16 | low, stream & _31_BITS
        if (self._block is None) == (kind == _Kind.CONTINUATION):
            raise Http2Error("a header list that is broken off, or goes on without having begun")
        if kind in _OF_A_CALL and (stream != self._stream or self._body is None):
            raise Http2Error("it answers what was not asked")
        if kind == _Kind.DATA:
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
        is_told = not flags & _ACKNOWLEDGES
        match kind:
            case _Kind.SETTINGS if is_told:
                self._take_settings(payload)
            case _Kind.PING if is_told:
                if len(payload) != _PING_BYTES:
                    raise Http2Error(f"a ping of {len(payload)} bytes")
                self.wire.send([_head(_PING_BYTES, _Kind.PING, _ACKNOWLEDGES, 0), payload])
            case _Kind.WINDOW:
                self._widen(stream, _numbers(payload, 1)[0] & _31_BITS)
            case _Kind.RESET if stream == self._stream and self._body is not None:
                (code,) = _numbers(payload, 1)
                is_refused = code == _REFUSED_STREAM and not self._fields
                raise Http2Error(f"it ends the call with code {code}", is_refused=is_refused, code=code)
            case _Kind.GOING:
                self._is_left = True
                if self._body is not None and self._stream > _numbers(payload, 2)[0] & _31_BITS:
                    raise Http2Error("it takes no more calls", is_refused=not self._fields)
            case _Kind.PROMISE:
                raise Http2Error("it promises what was not asked")

    def _take_data(self, length: int, flags: int) -> None:
        """The one frame that may be long."""
        body = self._body
        assert body is not None
        if not self._fields:
            raise Http2Error("an answer without headers")
        self._untold += length
        padding = 0
        if flags & _IS_PADDED and length:
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
        if self._untold > _31_BITS // 2:  # A call's own window no answer comes to the end of.
            self.wire.send([_head(_NUMBER.size, _Kind.WINDOW, 0, 0), _NUMBER.pack(self._untold)])
            self._untold = 0
        if flags & _ENDS_STREAM:
            self._body = None

    def _take_headers(self, kind: int, flags: int, payload: bytearray) -> None:
        """Add a header list to the answer's, once it is whole."""
        if kind == _Kind.HEADERS:
            self._is_last = bool(flags & _ENDS_STREAM)
            payload = _unpadded(payload, flags)
        block = (self._block or bytearray()) + payload
        if len(block) > MAX_HEADERS:
            raise Http2Error(f"a header list of more than {MAX_HEADERS} bytes")
        self._block = block
        if not flags & _ENDS_HEADERS:
            return
        self._block = None
        fields = self._unpacked(bytes(block))
        if fields.get(":status", "").startswith("1") and not self._is_last:
            return  # The answer is still to come.
        if self._fields and not self._is_last:
            raise Http2Error("header lists without end")
        self._fields |= fields
        if self._is_last:
            self._body = None
        elif self._body is not None:
            self._body.begin(self._fields)

    def _unpacked(self, block: bytes) -> Mapping[str, str]:
        """The fields of a header list: one of places in the table alone says the same as before, while that stands."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
        except HPACKError as error:
            raise Http2Error(f"a header list that cannot be read: {error}") from error
        is_of_places = all(_FIRST_PLACE <= byte <= _LAST_PLACE for byte in block)
        if not is_of_places or len(self._known) == _MOST_KNOWN:
            self._known.clear()  # It may have put something into the table.
        if is_of_places and len(block) <= _LONGEST_KNOWN:
            self._known[block] = fields
        return fields

    def _take_settings(self, payload: bytearray) -> None:
        if len(payload) % _SETTING.size:
            raise Http2Error("settings that cannot be read")
        for setting, value in _SETTING.iter_unpack(payload):
            if setting == _Setting.INITIAL_WINDOW:
                self._widen(self._stream, value - self._initial_window)
                self._initial_window = value
            elif setting == _Setting.LARGEST_FRAME:
                if not _LEAST_FRAME <= value <= _LARGEST_FRAME:
                    raise Http2Error(f"frames of {value} bytes")
                self._largest_frame = value
        self.wire.send([_head(0, _Kind.SETTINGS, _ACKNOWLEDGES, 0)])

    def _widen(self, stream: int, count: int) -> None:
        """Let so many bytes more out, of a call or, stream 0, of all of them; a call's may have been taken back."""
        if stream == 0:
            self._shared_window += count
        elif stream == self._stream and self._body is not None:
            self._window += count
        if max(self._shared_window, self._window) > _31_BITS:
            raise Http2Error("a window beyond all bounds")

    def _read(self, length: int) -> bytearray:
        payload = bytearray(length)
        self.wire.fill(memoryview(payload))
        return payload


class _Cutter:
    """Parts, cut anew."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._left = [memoryview(part) for part in reversed(parts)]

    def cut(self, size: int) -> list[Buffer]:
        """The next bytes, so many."""
        pieces: list[Buffer] = []
        while size:
            part = self._left.pop()
            pieces.append(part[:size])
            if len(part) > size:
                self._left.append(part[size:])
            size -= len(pieces[-1])
        return pieces


_KINDS = frozenset(_Kind)
_OF_A_CALL = (_Kind.DATA, _Kind.HEADERS, _Kind.CONTINUATION)


def _head(length: int, kind: _Kind, flags: int, stream: int) -> bytes:
    return _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def _unpadded(payload: bytearray, flags: int) -> bytearray:
    begin, end = 0, len(payload)
    if flags & _IS_PADDED and payload:
        begin, end = 1, end - payload[0]
    if flags & _HAS_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin > end:
        raise Http2Error("padding beyond its frame")
    return payload[begin:end]


def _numbers(payload: bytearray, count: int) -> list[int]:
    """So many 32-bit numbers, at the beginning of a frame."""
    if len(payload) < count * _NUMBER.size:
        raise Http2Error(f"a frame of {len(payload)} bytes that has to have {count * _NUMBER.size}")
    return [_NUMBER.unpack_from(payload, _NUMBER.size * place)[0] for place in range(count)]


def _greeting() -> bytes:
    """That no answer is to wait for us: its body is bounded where it is taken."""
    settings = {_Setting.ENABLE_PUSH: 0, _Setting.INITIAL_WINDOW: _31_BITS, _Setting.LARGEST_FRAME: _LARGEST_FRAME}
    told = b"".join(_SETTING.pack(*setting) for setting in settings.items())
    return b"".join((
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _head(len(told), _Kind.SETTINGS, 0, 0), told,
        _head(_NUMBER.size, _Kind.WINDOW, 0, 0), _NUMBER.pack(_31_BITS - _FIRST_WINDOW),
    ))  # fmt: skip


_GREETING = _greeting()
