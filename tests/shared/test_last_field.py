"""A last field of bytes, written by hand, against MessagePack's library."""

import msgpack
import pytest

from shared.last_field import parts

BYTES = bytes(range(256)) * 257


@pytest.mark.parametrize("size", [0, 1, 255, 256, (1 << 16) - 1, 1 << 16])
def test_the_parts_are_what_the_library_writes(size: int) -> None:
    """Other clients read them with a library of their own."""
    head, data = msgpack.packb({"v": 1, "text": "abc", "data": b""}), BYTES[:size]
    assert b"".join(parts(head, data)) == msgpack.packb({"v": 1, "text": "abc", "data": data})


def test_a_picture_is_not_copied() -> None:
    """That is what it is for: copying a raw frame takes longer than writing all the rest."""
    assert parts(msgpack.packb({"data": b""}), BYTES)[1] is BYTES
