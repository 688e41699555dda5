import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.messages.protobuf import message_class
from shared.messages.protobuf_fields import PackedError, pack, unpack

PACKED = message_class("skylane.v1.Packed")


@given(st.binary(max_size=1 << 15))
@example(b"")
@example(b"x" * 127)
@example(b"x" * 128)
@example(b"x" * (1 << 21))
def test_encoding_matches_the_protobuf_library(message: bytes) -> None:
    """Clients in other languages are generated from the .proto file."""
    assert PACKED.FromString(pack(message)).message == message
    assert bytes(unpack(PACKED(message=message).SerializeToString())) == message
    assert bytes(unpack(pack(message))) == message


@given(
    st.binary(max_size=64)
    | st.lists(st.sampled_from(b"\x00\x01\x02\x08\x0a\x0d\x12\x80\x8a\xff"), max_size=14).map(bytes)
)
@example(b"\x8a\x80\x00\x01x")  # A tag with redundant bytes.
@example(b"\x80\x80\x81\xff\x80\x80\x80\x00\x03")  # A tag that is too long.
@example(b"\x0a\x01x\x0a\x02yz")  # The field twice: the last value counts.
@example(b"\x08\x01")  # The field as a varint.
def test_random_bytes_are_decoded_like_the_library_or_rejected(data: bytes) -> None:
    """Only groups, which are deprecated, are rejected although the library skips them."""
    try:
        message = bytes(unpack(data))
    except PackedError:
        return
    assert PACKED.FromString(data).message == message


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x02x", b"\x0a\x01xy", b"\x0a" + b"\xff" * 12])
def test_truncated_message_is_rejected(data: bytes) -> None:
    """A truncated message must not pass for a shorter one."""
    with pytest.raises(PackedError):
        unpack(data)
