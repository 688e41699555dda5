"""A large last field, written and read by hand, against MessagePack's library."""

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.fields import Fields
from shared.last_field import is_large, parts, split

LARGE = bytes(range(256)) * 257


@given(st.sampled_from([b"", b"x", LARGE[: 1 << 16], LARGE]), st.text("abc", max_size=50))
def test_the_parts_are_what_the_library_writes(data: bytes, text: str) -> None:
    """Other clients read them with a library of their own."""
    fields = {"v": 1, "text": text, "data": data}
    if is_large(data):
        assert b"".join(parts(msgpack.packb({**fields, "data": b""}), data)) == msgpack.packb(fields)
    read = Fields.of_message_with_data(msgpack.packb(fields))
    assert read.bytes("data") == data
    assert read.text("text") == text


def test_a_large_picture_is_not_copied() -> None:
    """That is what it is for: copying a raw frame takes longer than reading all the rest."""
    packed = msgpack.packb({"v": 1, "data": LARGE})
    head, data = split(packed)
    assert data is not None
    assert data.obj is packed
    assert msgpack.unpackb(head) == {"v": 1, "data": b""}


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 1, "data": LARGE, "later": 1},
        {"v": 1, "data": "text"},
        {"v": 1, "name": b"\xa4data\xc6\x00\x01\x00\x00", "data": LARGE},
        {"v": 1, "x" * 200: {"data": LARGE}},
    ],
)
def test_where_it_is_not_last_the_library_reads_it(fields: dict[str, object]) -> None:
    """Order is no part of a map: other senders may write theirs otherwise."""
    read = Fields.of_message_with_data(msgpack.packb(fields))
    for key, value in fields.items():
        assert read.get(key) == value


@given(st.binary(max_size=200), st.integers(0, 1 << 32 - 1))
@example(b"\x81", 1 << 16)
def test_any_bytes_are_read_or_refused(before: bytes, length: int) -> None:
    """It reads what anybody may send, before anything else does."""
    payload = before + b"\xa4data\xc6" + (length & 0xFFFFFFFF).to_bytes(4, "big") + LARGE
    head, data = split(payload)
    if data is not None:
        assert len(data) == length == len(LARGE)
        assert bytes(head) == before + b"\xa4data\xc4\x00"
    else:
        assert head == payload
