"""HTTP/2's frames (RFC 9113), as both ends of a connection write and read them."""

import struct
from collections.abc import Sequence
from enum import IntEnum

from shared.compression import Buffer

MAX_HEADERS = 65_536  # Bytes of a header list, packed or not, and of any frame that is not data.

WORTH_WAKING_FOR = 1 << 16  # Bytes of a body; its headers go ahead, and the other end wakes while these are copied.
HEAD_BYTES = 9  # Before each frame.
LARGEST_FRAME = (1 << 24) - 1  # Bytes behind a frame's head, that both ends may agree on,
LEAST_FRAME = 1 << 14  # and that they need not.
LARGEST = (1 << 31) - 1  # Of a stream's number, and of a window.
FIRST_WINDOW = (1 << 16) - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # What a caller says first.
PING_BYTES = 8
ENDS_STREAM = ACKNOWLEDGES = 1  # Flags of a frame: of data and headers; of settings and pings;
ENDS_HEADERS, IS_PADDED = 4, 8  # of headers, and the second of data.

_HAS_PRIORITY, _PRIORITY_BYTES = 32, 5
_HEAD = struct.Struct(">BHBBI")  # The length's high byte and the others, kind, flags, stream.
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")


class Kind(IntEnum):
    """Of a frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RESET = 3
    SETTINGS = 4
    PROMISE = 5
    PING = 6
    GOING = 7
    WINDOW = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """What one end tells the other of itself."""

    ENABLE_PUSH = 2
    MOST_STREAMS = 3
    INITIAL_WINDOW = 4
    LARGEST_FRAME = 5
    LARGEST_LIST = 6


class Code(IntEnum):
    """Why a call or a connection ends."""

    NONE = 0
    PROTOCOL = 1
    FLOW_CONTROL = 3
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION = 9
    ENOUGH = 11  # The protocol calls it ENHANCE_YOUR_CALM.


class Http2Error(Exception):
    """The other end does not keep to the protocol, or ends the call."""

    def __init__(self, problem: str, *, is_refused: bool = False, code: int | None = None) -> None:
        """`is_refused`: it told that it has done nothing of the call, nor will. `code`: with which the call ends."""
        self.is_refused, self.code = is_refused, code
        super().__init__(problem)


def head(length: int, kind: Kind, flags: int, stream: int) -> bytes:
    """What stands before so many bytes."""
    return _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def read_head(data: Buffer) -> tuple[int, int, int, int]:
    """The length of a frame, its kind, which may be none of ours, its flags and its stream."""
    high, low, kind, flags, stream = _HEAD.unpack(data)
    return high << 16 | low, kind, flags, stream & LARGEST


def frame(kind: Kind, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """A small one."""
    return head(len(payload), kind, flags, stream) + payload


def header_frames(block: bytes, stream: int, largest_frame: int, *, is_last: bool = False) -> list[Buffer]:
    """A header list in as many frames as it takes."""
    frames: list[Buffer] = []
    for at in range(0, len(block), largest_frame):
        piece = block[at : at + largest_frame]
        flags = ENDS_HEADERS if at + len(piece) == len(block) else 0
        if is_last and not at:
            flags |= ENDS_STREAM
        frames += [head(len(piece), Kind.CONTINUATION if at else Kind.HEADERS, flags, stream), piece]
    return frames


def window(stream: int, count: int) -> bytes:
    """That so many bytes more may come, of a call, or of all for stream 0."""
    return frame(Kind.WINDOW, 0, stream, _NUMBER.pack(count))


def reset(stream: int, code: Code) -> bytes:
    """The end of a call."""
    return frame(Kind.RESET, 0, stream, _NUMBER.pack(code))


def going(last_stream: int, code: Code, why: str = "") -> bytes:
    """The end of a connection: of no call behind the last one anything was done."""
    return frame(Kind.GOING, 0, 0, _NUMBER.pack(last_stream) + _NUMBER.pack(code) + why.encode())


def settings(told: dict[Setting, int]) -> bytes:
    """What an end says of itself."""
    return frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in told.items()))


def read_settings(payload: Buffer) -> dict[int, int]:
    """The other's; of those that are told twice the last.

    Raises:
        Http2Error: they cannot be read, or are out of bounds.
    """
    if len(payload) % _SETTING.size:
        raise Http2Error("settings that cannot be read")
    told = dict(_SETTING.iter_unpack(payload))
    if not LEAST_FRAME <= told.get(Setting.LARGEST_FRAME, LEAST_FRAME) <= LARGEST_FRAME:
        raise Http2Error(f"frames of {told[Setting.LARGEST_FRAME]} bytes")
    if told.get(Setting.INITIAL_WINDOW, 0) > LARGEST:
        raise Http2Error(f"windows of {told[Setting.INITIAL_WINDOW]} bytes", code=Code.FLOW_CONTROL)
    return told


def pong(payload: Buffer) -> bytes:
    """What a ping is answered with.

    Raises:
        Http2Error: it is none.
    """
    if len(payload) != PING_BYTES:
        raise Http2Error(f"a ping of {len(payload)} bytes")
    return frame(Kind.PING, ACKNOWLEDGES, 0, payload)


def unpadded(payload: bytearray, flags: int) -> bytearray:
    """What a frame of headers holds beside padding and priority.

    Raises:
        Http2Error: the padding goes beyond the frame.
    """
    begin, end = 0, len(payload)
    if flags & IS_PADDED and payload:
        begin, end = 1, end - payload[0]
    if flags & _HAS_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin > end:
        raise Http2Error("padding beyond its frame")
    return payload[begin:end]


def numbers(payload: Buffer, count: int) -> list[int]:
    """So many 32-bit numbers, at the beginning of a frame.

    Raises:
        Http2Error: there are fewer.
    """
    if len(payload) < count * _NUMBER.size:
        raise Http2Error(f"a frame of {len(payload)} bytes that has to have {count * _NUMBER.size}")
    return [_NUMBER.unpack_from(payload, _NUMBER.size * place)[0] for place in range(count)]


class Cutter:
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
