"""Mutations: damages valid messages as broken or hostile senders could, generated from a seed."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

_MOST_BYTES = 1 << 16  # Maximum size of extended payloads; bombs have large declared sizes instead.
_MOST_FLIPS = 8
_KEEP = 0.05  # Share of messages that stay valid.

# Values of wrong types, and numbers at limits.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 256, 257, 1000, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 53) + 1),
    *((1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63), 0.0, -0.5, 1e300, float("inf"), float("nan")),
    *(
        "",
        "a",
        "x" * 5000,
        "a/b",
        "../../etc/passwd",
        "#",
        "+",
        "\x00",
        "\ud7ff",
        "ä" * 64,
        "car/left/s1/7",
        "raw",
        "png",
    ),
    *(b"", b"\x00", bytes(300), b"\xff" * 65, [], [[]], [0, 0], [0, 0, 3], [1] * 256, [16384, 16384, 3], [-1, 2]),
    *([["due", "edge/a/b", 1]] * 256, {}, {"": {}}, {"size": "frame"}, {"v": 1}, {str(key): key for key in range(256)}),
)
_FALSE_LENGTHS = (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")  # bin, str, array, map and ext of 32 bits.


class Mutator:
    """Damages payloads; the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def mutated(self, payload: bytes, other: bytes) -> bytes:
        """Returns the payload, damaged in one or several ways, possibly with parts of the message `other`."""
        if self._chance.random() < _KEEP:
            return payload
        for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
            payload = self._chance.choice(_WAYS)(self._chance, payload, other)
        return payload[:_MOST_BYTES]


def _cut(chance: random.Random, payload: bytes, _: bytes) -> bytes:
    return payload[: chance.randrange(len(payload) + 1)]


def _flip(chance: random.Random, payload: bytes, _other: bytes) -> bytes:
    damaged = bytearray(payload)
    for _ in range(chance.randint(1, _MOST_FLIPS) if damaged else 0):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _splice(chance: random.Random, payload: bytes, other: bytes) -> bytes:
    return payload[: chance.randrange(len(payload) + 1)] + other[chance.randrange(len(other) + 1) :]


def _insert(chance: random.Random, payload: bytes, _: bytes) -> bytes:
    at = chance.randrange(len(payload) + 1)
    return payload[:at] + chance.randbytes(chance.randint(1, 16)) + payload[at:]


def _lie(chance: random.Random, payload: bytes, _: bytes) -> bytes:
    """Inserts a false length, which must be refused before memory is allocated."""
    length = struct.pack(">I", chance.choice((1 << 16, 1 << 24, (1 << 31) - 1, (1 << 32) - 1)))
    at = chance.randrange(len(payload) + 1)
    return payload[:at] + chance.choice(_FALSE_LENGTHS) + length + payload[at:]


def _nest(chance: random.Random, _payload: bytes, _other: bytes) -> bytes:
    """Returns deeply nested lists or maps, or very many of them in sequence."""
    opening = chance.choice((b"\x91", b"\x81\xa1a"))
    if chance.random() < 0.5:
        return b"\x82\xa1v\x01\xa1x" + opening * chance.choice((30, 500, 1100, 5000)) + b"\xc0"
    rows = chance.randrange(1, 17)
    row = b"\xdc\x01\x00" + chance.choice((b"\x80", b"\x90", b"\xc0")) * 256
    return b"\x82\xa1v\x01\xa1x\xdc" + struct.pack(">H", rows) + row * rows


def _change(chance: random.Random, payload: bytes, other: bytes) -> bytes:
    """Changes the value of one key at any depth."""
    return _remade(payload, lambda fields: _changed_at(chance, fields, _foreign(chance, other)))


def _drop(chance: random.Random, payload: bytes, _: bytes) -> bytes:
    def dropped(fields: dict[Any, Any]) -> None:
        if fields:
            del fields[chance.choice(list(fields))]

    return _remade(payload, dropped)


def _rename(chance: random.Random, payload: bytes, _: bytes) -> bytes:
    """Swaps two keys, or renames one."""

    def renamed(fields: dict[Any, Any]) -> None:
        keys = list(fields)
        if len(keys) > 1:
            one, two = chance.sample(keys, 2)
            fields[one], fields[two] = fields[two], fields[one]
            fields[chance.choice(("extra", "data ", "V", 7, None))] = fields.pop(chance.choice(keys))

    return _remade(payload, renamed)


_WAYS: Sequence[Callable[[random.Random, bytes, bytes], bytes]] = (
    *(_cut, _flip, _splice, _insert, _lie, _nest),
    *(_change, _change, _change, _change, _drop, _rename),
)


def _remade(payload: bytes, change: Callable[[dict[Any, Any]], None]) -> bytes:
    """Returns the message with its map changed, or unchanged if it is not a map."""
    try:
        fields = msgpack.unpackb(payload, strict_map_key=False)
        if not isinstance(fields, dict):
            return payload
        change(fields)
        packed: bytes = msgpack.packb(fields)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):  # The payload may already be damaged.
        return payload
    return packed


def _foreign(chance: random.Random, other: bytes) -> Any:
    """Returns an unusual value, or a value of another message."""
    if chance.random() < 0.8:
        return chance.choice(STRANGE)
    try:
        fields = msgpack.unpackb(other, strict_map_key=False)
        return chance.choice(list(fields.values())) if isinstance(fields, dict) and fields else other
    except (ValueError, TypeError, msgpack.UnpackException):
        return other


def _changed_at(chance: random.Random, fields: Any, value: Any) -> None:
    """Puts a value at a random place of a map or list, or of a nested one."""
    while True:
        places = list(fields) if isinstance(fields, dict) else range(len(fields))
        if not places:
            return
        place = chance.choice(places)
        inner = fields[place]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.4:
            fields[place] = value
            return
        fields = inner
