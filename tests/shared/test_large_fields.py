"""Protocol buffers whose large fields are read and written by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.large_fields import MAX_FIELDS, FieldsError, head, split
from shared.packed import PackedError, pack, unpack
from shared.protocol_buffers import message_class

REQUEST = "inference.ModelInferRequest"
RAW = 7  # The number of raw_input_contents.


@given(
    model=st.text(max_size=20),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    raws=st.lists(st.binary(max_size=300), max_size=4),
)
def test_what_the_library_writes_is_divided_and_put_together_again(
    model: str, shape: list[int], raws: list[bytes]
) -> None:
    """Any client's message is read as the library would, and the library reads ours."""
    whole = message_class(REQUEST)(model_name=model, raw_input_contents=raws)
    whole.inputs.add(name="input", shape=shape)
    small, large = split(whole.SerializeToString(), RAW)
    assert [bytes(each) for each in large] == raws
    read = message_class(REQUEST).FromString(small)
    assert (read.model_name, list(read.inputs[0].shape), len(read.raw_input_contents)) == (model, shape, 0)
    joined = b"".join([small, *(part for each in large for part in (head(RAW, len(each)), each))])
    assert message_class(REQUEST).FromString(joined) == whole


@given(data=st.binary(max_size=60))
def test_any_bytes_are_divided_or_refused(data: bytes) -> None:
    """A stranger's bytes end in no other error than ours, and nothing of them is lost."""
    try:
        small, large = split(data, RAW)
    except FieldsError:
        return
    assert len(small) + sum(len(each) for each in large) <= len(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x3a", "within a number"),
        (b"\x3a\x05abc", "within a field"),
        (b"\xff" * 11, "within a number"),
        (b"\x0b", "obsolete kind 3"),
        (b"\x09abc", "within a field"),
        (b"\x3a\x00" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(data: bytes, problem: str) -> None:
    """Each way to be broken is told, and two bytes a field are not followed for ever."""
    with pytest.raises(FieldsError, match=problem):
        split(data, RAW)


@given(message=st.binary(max_size=400))
def test_a_packed_message_is_the_librarys(message: bytes) -> None:
    """Clients whose .proto is compiled read and write the same."""
    packed = message_class("skylane.v1.Packed")(message=message).SerializeToString()
    assert bytes(unpack(packed)) == message
    assert message_class("skylane.v1.Packed").FromString(pack(message)).message == message


@pytest.mark.parametrize("data", [b"\x12\x01a", pack(b"a") + pack(b"b"), b"\x0a\x05abc"])
def test_what_is_no_packed_message_is_refused(data: bytes) -> None:
    """A field of another number, two of them, and one cut short."""
    with pytest.raises(PackedError, match=r"skylane\.v1\.Packed"):
        unpack(data)
