from importlib.resources import files

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.protobuf import COMPILED, MAX_FIELDS, MAX_LIST_BYTES, ProtobufError, message_class, parse

REQUEST = message_class("inference.ModelInferRequest")
CONTENTS = message_class("inference.InferTensorContents")


@given(
    model=st.text(max_size=20),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    raws=st.lists(st.binary(max_size=300), max_size=4),
)
def test_valid_message_is_parsed(model: str, shape: list[int], raws: list[bytes]) -> None:
    """Any client's message is parsed as the protobuf library does."""
    request = REQUEST(model_name=model, raw_input_contents=raws)
    request.inputs.add(name="input", shape=shape)
    assert parse(REQUEST, request.SerializeToString()) == request


@given(data=st.binary(max_size=60) | st.lists(st.sampled_from([0x0A, 0x22, 0x2A, 0x3A, 0x08, 4, 2, 1, 0])).map(bytes))
def test_random_bytes_are_parsed_like_the_library_or_rejected(data: bytes) -> None:
    """Untrusted bytes raise no error but ProtobufError."""
    try:
        read = parse(REQUEST, data)
    except ProtobufError:
        return
    assert read == REQUEST.FromString(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x3a", "within a number"),
        (b"\x3a\x05abc", "within a field"),
        (b"\xff" * 11, "within a number"),
        (b"\x0b", "unsupported wire type 3"),
        (b"\x02\x00", "field number 0 is invalid"),
        (b"\xff\xff\xff\xff\x1f\x00", "field number 1073741823 is invalid"),
        (b"\x8a\x80\x80\x80\x80\x00\x00", "within a number"),
        (b"\x09abc", "within a field"),
        (b"\x0a\x01\xff", "cannot be read"),
        (b"\x3a\x00" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
        ((b"\x2a\x80\x20" + b"\x2a\x00" * 2048) * 10, f"more than {MAX_FIELDS} fields"),
    ],
)
def test_invalid_message_is_rejected_with_a_reason(data: bytes, problem: str) -> None:
    """Covers every kind of damage, and messages of very many empty fields."""
    with pytest.raises(ProtobufError, match=problem):
        parse(REQUEST, data)


def test_integer_lists_share_one_limit() -> None:
    """Each byte of a packed list may become an integer of eight bytes."""
    half = CONTENTS(uint_contents=bytes(MAX_LIST_BYTES // 2)).SerializeToString()
    assert len(parse(CONTENTS, half + half).uint_contents) == MAX_LIST_BYTES
    with pytest.raises(ProtobufError, match="lists of integers"):
        parse(CONTENTS, half + half + CONTENTS(int_contents=[1, 2]).SerializeToString())


def test_no_message_type_contains_itself() -> None:
    """The .proto files therefore limit the nesting, and the recursive check needs no depth limit."""

    def check(descriptor: Descriptor, outer: frozenset[str]) -> None:
        assert descriptor.full_name not in outer
        for field in descriptor.fields:
            if field.message_type is not None:
                check(field.message_type, outer | {descriptor.full_name})

    compiled = FileDescriptorSet.FromString((files("shared") / "protos" / COMPILED).read_bytes())
    names = [f"{file.package}.{each.name}" for file in compiled.file for each in file.message_type]
    assert len(names) > 20
    for name in names:
        check(message_class(name).DESCRIPTOR, frozenset())


def test_library_error_becomes_protobuf_error() -> None:
    """Invalid UTF-8 is detected only by the library."""
    data = b"\x0a\x01\xff"  # Invalid UTF-8.
    with pytest.raises(DecodeError):
        REQUEST.FromString(data)
    with pytest.raises(ProtobufError):
        parse(REQUEST, data)
