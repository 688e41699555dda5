"""Protocol buffers from elsewhere, held against the library alone."""

from importlib.resources import files

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from shared.encoding.bounded_protobuf import MAX_FIELDS, MAX_LIST_BYTES, ProtobufError, parse
from shared.encoding.protobuf import COMPILED, message_class

REQUEST = message_class("inference.ModelInferRequest")
CONTENTS = message_class("inference.InferTensorContents")


@given(
    model=st.text(max_size=20),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    raws=st.lists(st.binary(max_size=300), max_size=4),
)
def test_what_the_library_writes_is_read(model: str, shape: list[int], raws: list[bytes]) -> None:
    """Any client's message."""
    whole = REQUEST(model_name=model, raw_input_contents=raws)
    whole.inputs.add(name="input", shape=shape)
    assert parse(REQUEST, whole.SerializeToString()) == whole


@given(data=st.binary(max_size=60) | st.lists(st.sampled_from([0x0A, 0x22, 0x2A, 0x3A, 0x08, 4, 2, 1, 0])).map(bytes))
def test_any_bytes_are_read_as_the_library_reads_them_or_refused(data: bytes) -> None:
    """A stranger's bytes end in no other error than ours."""
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
        (b"\x0b", "obsolete kind 3"),
        (b"\x02\x00", "field of the number 0"),
        (b"\xff\xff\xff\xff\x1f\x00", "field of the number 1073741823"),
        (b"\x8a\x80\x80\x80\x80\x00\x00", "within a number"),
        (b"\x09abc", "within a field"),
        (b"\x0a\x01\xff", "cannot be read"),
        (b"\x3a\x00" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
        ((b"\x2a\x80\x20" + b"\x2a\x00" * 2048) * 10, f"more than {MAX_FIELDS} fields"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(data: bytes, problem: str) -> None:
    """Each way to be broken is told, and two bytes a field are not followed for ever."""
    with pytest.raises(ProtobufError, match=problem):
        parse(REQUEST, data)


def test_lists_of_whole_numbers_are_bounded_all_together() -> None:
    """A byte of one takes eight here."""
    half = CONTENTS(uint_contents=bytes(MAX_LIST_BYTES // 2)).SerializeToString()
    assert len(parse(CONTENTS, half + half).uint_contents) == MAX_LIST_BYTES
    with pytest.raises(ProtobufError, match="lists of whole numbers"):
        parse(CONTENTS, half + half + CONTENTS(int_contents=[1, 2]).SerializeToString())


def test_no_message_can_hold_another_of_its_own_kind() -> None:
    """So its .proto bounds how many lie within one another, and the pass over them needs no bound of its own."""

    def check(kind: Descriptor, around: frozenset[str]) -> None:
        assert kind.full_name not in around
        for field in kind.fields:
            if field.message_type is not None:
                check(field.message_type, around | {kind.full_name})

    compiled = FileDescriptorSet.FromString((files("shared") / "protos" / COMPILED).read_bytes())
    names = [f"{file.package}.{each.name}" for file in compiled.file for each in file.message_type]
    assert len(names) > 20
    for name in names:
        check(message_class(name).DESCRIPTOR, frozenset())


def test_what_the_library_refuses_is_refused() -> None:
    """Its own error is none of ours."""
    data = b"\x0a\x01\xff"  # No UTF-8.
    with pytest.raises(DecodeError):
        REQUEST.FromString(data)
    with pytest.raises(ProtobufError):
        parse(REQUEST, data)
