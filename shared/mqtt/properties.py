"""What MQTT 5 says beside a payload, as it lies in a publication (MQTT 5.0, 2.2.2 and 3.3.2.3).

paho's own writer and reader take a fifth of a millisecond each behind an inference, which is a sixth of a broker's hop.
"""

import re
import struct
from collections.abc import Iterator

from shared.mqtt.bus import Properties

MAX_BYTES = 1024  # Twice what the longest names take.

_SHORT, _LONG = struct.Struct(">H"), struct.Struct(">I")
_EXPIRY, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION, _USER = 0x02, 0x03, 0x08, 0x09, 0x26
_LENGTHS = {0x01: 1, _EXPIRY: 4, 0x23: 2}  # Of those that a publication may have and that have one length: bytes.
_SUBSCRIPTION = 0x0B  # It has a length of its own making.
_TEXTS = (_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION)
_MORE, _LENGTH_BYTES = 0x80, 4
_TRACEPARENT = b"traceparent"
_TRACE = re.compile(rb"[0-9a-f-]{1,128}")  # W3C Trace Context, of any version; it is said again beside the answer.


class MalformedPropertiesError(Exception):
    """What is no publication's properties."""


def packed(properties: Properties) -> bytes:
    """The properties with their length before them."""
    parts: list[bytes] = []
    if properties.content_type is not None:
        parts += (bytes((_CONTENT_TYPE,)), _with_length(properties.content_type.encode()))
    if properties.response_topic is not None:
        parts += (bytes((_RESPONSE_TOPIC,)), _with_length(properties.response_topic.encode()))
    if properties.correlation is not None:
        parts += (bytes((_CORRELATION,)), _with_length(properties.correlation))
    if properties.expiry_s is not None:
        parts += (bytes((_EXPIRY,)), _LONG.pack(properties.expiry_s))
    if properties.traceparent is not None:
        parts += (bytes((_USER,)), _with_length(_TRACEPARENT), _with_length(properties.traceparent.encode()))
    body = b"".join(parts)
    length, high = len(body) & 0x7F, len(body) >> 7  # Seven bits a byte, the least first (MQTT 5.0, 1.5.5).
    return (bytes((length | _MORE, high)) if high else bytes((length,))) + body


def read(packet: memoryview) -> tuple[Properties, int]:
    """The properties that a packet goes on with, and how many bytes they take there.

    None where they are over the limit, or not as they should be: what stands beside a message is not to cost the message.

    Raises:
        MalformedPropertiesError: where they end is not told.
    """
    size, begin = _read_length(packet)
    body = bytes(packet[begin : begin + size]) if size <= MAX_BYTES else b""
    try:
        return _properties(body), begin + size
    except (MalformedPropertiesError, struct.error, LookupError, UnicodeDecodeError):
        return Properties(), begin + size


def _properties(body: bytes) -> Properties:
    found: dict[int, bytes] = {}
    traceparent: bytes | None = None
    for kind, value, behind in _each(body):
        if kind == _USER:
            traceparent = behind if value == _TRACEPARENT else traceparent
        elif kind in found and kind != _SUBSCRIPTION:
            raise MalformedPropertiesError("one that there may be once comes twice")
        else:
            found[kind] = value
    texts = {kind: found[kind].decode() for kind in (_CONTENT_TYPE, _RESPONSE_TOPIC) if kind in found}
    return Properties(
        content_type=texts.get(_CONTENT_TYPE),
        response_topic=texts.get(_RESPONSE_TOPIC),
        correlation=found.get(_CORRELATION),
        expiry_s=_LONG.unpack(found[_EXPIRY])[0] if _EXPIRY in found else None,
        traceparent=traceparent.decode() if traceparent and _TRACE.fullmatch(traceparent) else None,
    )


def _each(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Of each its kind, its value and, of a user's own, whose name that is, what is behind it."""
    at = 0
    while at < len(body):
        kind, behind = body[at], b""
        at += 1
        if kind in _TEXTS or kind == _USER:
            value, at = _read_text(body, at)
        elif kind == _SUBSCRIPTION:
            value = b""
            at += _read_length(memoryview(body)[at:])[1]
        else:
            value = body[at : at + _LENGTHS[kind]]
            at += _LENGTHS[kind]
        if kind == _USER:
            behind, at = _read_text(body, at)
        yield kind, value, behind
    if at > len(body):
        raise MalformedPropertiesError("the last one is cut off")


def _read_text(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + _SHORT.size + _SHORT.unpack_from(body, at)[0]
    return body[at + _SHORT.size : end], end


def _with_length(value: bytes) -> bytes:
    return _SHORT.pack(len(value)) + value


def _read_length(packet: memoryview) -> tuple[int, int]:
    """A length in one to four bytes, and how many it takes."""
    length = 0
    for place, byte in enumerate(packet[:_LENGTH_BYTES]):
        length |= (byte & ~_MORE) << 7 * place
        if byte < _MORE:
            return length, place + 1
    raise MalformedPropertiesError("a length that does not end")
