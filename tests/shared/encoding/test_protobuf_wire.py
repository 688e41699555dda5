"""Skylane's messages in a protocol buffer."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.encoding.protobuf import message_class, method_types
from shared.encoding.protobuf_wire import PackedError, pack, unpack

PACKED = message_class("skylane.v1.Packed")


@given(st.binary(max_size=1 << 15))
@example(b"")
@example(b"x" * 127)
@example(b"x" * 128)
@example(b"x" * (1 << 21))
def test_it_is_what_protocol_buffers_write_and_read(message: bytes) -> None:
    """Clients in other languages are made from the .proto file."""
    assert PACKED.FromString(pack(message)).message == message
    assert bytes(unpack(PACKED(message=message).SerializeToString())) == message
    assert bytes(unpack(pack(message))) == message


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """They come from whoever reaches the port."""
    try:
        message = bytes(unpack(data))
    except PackedError:
        return
    assert PACKED.FromString(data).message == message


@given(st.lists(st.sampled_from(b"\x00\x01\x02\x08\x0a\x0d\x12\x80\x8a\xff"), max_size=14).map(bytes))
@example(b"\x8a\x80\x00\x01x")  # A longer tag than need be.
@example(b"\x80\x80\x81\xff\x80\x80\x80\x00\x03")  # One too long.
@example(b"\x0a\x01x\x0a\x02yz")  # The last one counts.
@example(b"\x08\x01")  # A number in its place.
def test_what_is_almost_a_message_is_read_as_the_library_reads_it(data: bytes) -> None:
    """Only what has long been obsolete, groups, is refused here and skipped there."""
    try:
        message = bytes(unpack(data))
    except PackedError:
        return
    assert PACKED.FromString(data).message == message


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x02x", b"\x0a\x01xy", b"\x0a" + b"\xff" * 12])
def test_a_length_that_is_not_the_messages_is_refused(data: bytes) -> None:
    """A message cut off on its way must not pass for a shorter one."""
    with pytest.raises(PackedError):
        unpack(data)


def test_services_are_known_with_what_they_take_and_give() -> None:
    """Servers and clients are made from the same table."""
    assert set(method_types("skylane.v1.Worker")) == {"Answer", "Status", "Probe"}
    assert method_types("tensorflow.serving.PredictionService")["Predict"] == (
        message_class("tensorflow.serving.PredictRequest"),
        message_class("tensorflow.serving.PredictResponse"),
    )
