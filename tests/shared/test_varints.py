"""Packed lists of numbers, held against the library of protocol buffers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.large_fields import split
from shared.protocol_buffers import message_class
from shared.varints import VarintsError, pack, unpack_bytes

_INT_VAL = 7
LISTS = {"int32": "int_val", "int64": "int64_val", "uint32": "uint32_val", "uint64": "uint64_val", "bool": "bool_val"}


def packed(numbers: list[int]) -> bytes:
    """The bytes of `int_val` as the library writes them."""
    written = message_class("tensorflow.TensorProto")(int_val=numbers).SerializeToString()
    return b"".join(bytes(value) for value in split(written, _INT_VAL)[1])


@given(st.lists(st.integers(0, 255)))
def test_numbers_come_as_they_were_written(numbers: list[int]) -> None:
    """A pixel that is off by one is a wrong mask."""
    assert unpack_bytes(packed(numbers)).tolist() == numbers


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_what_is_no_byte_is_refused(numbers: list[int]) -> None:
    """Never wrapped round into another pixel."""
    if all(0 <= number <= 255 for number in numbers):
        return
    with pytest.raises(VarintsError, match="none of uint8"):
        unpack_bytes(packed(numbers))


@given(st.binary())
def test_anything_is_read_or_refused(data: bytes) -> None:
    """Anybody may send it; as many numbers come as there are bytes that end one."""
    try:
        numbers = unpack_bytes(data)
    except VarintsError:
        return
    assert len(numbers) == np.count_nonzero(np.frombuffer(data, np.uint8) < 128)


def test_a_list_that_is_cut_off_is_refused() -> None:
    """Half a number is not guessed."""
    with pytest.raises(VarintsError, match="ends within a number"):
        unpack_bytes(packed([1, 200])[:-1])


def extremes(dtype: str) -> list[int]:
    """Numbers about each length that a written one can have."""
    bounds = np.iinfo("uint8" if dtype == "bool" else dtype)
    steps = [sign * (1 << 7 * place) + step for sign in (1, -1) for place in range(10) for step in (-1, 0, 1)]
    return [number for number in (*steps, bounds.min, bounds.max) if bounds.min <= number <= bounds.max]


@pytest.mark.parametrize("dtype", [*LISTS, "uint8", "int8", "uint16", "int16"])
@given(st.data())
def test_numbers_are_written_as_the_library_writes_them(dtype: str, data: st.DataObject) -> None:
    """Bit by bit, of every length, negative ones too: clients read them by that library."""
    numbers = data.draw(st.lists(st.sampled_from(extremes(dtype)), max_size=9))
    values = np.array(numbers, dtype)
    name = LISTS.get(dtype, "int_val")
    proto = message_class("tensorflow.TensorProto")
    written = proto(**{name: values.tolist()}).SerializeToString()
    number = proto.DESCRIPTOR.fields_by_name[name].number
    assert b"".join(pack(values)) == b"".join(split(written, number)[1])


@pytest.mark.parametrize("step", [1, -1])
def test_lists_longer_than_a_block_are_written_whole(step: int) -> None:
    """A mask is nine blocks; an array may lie in memory in any order."""
    values: Any = np.random.default_rng(8).integers(0, 1000, 200_000)[::step].reshape(2, -1)
    proto = message_class("tensorflow.TensorProto")
    parts = list(pack(values))
    assert len(parts) > 1
    assert b"".join(parts) == split(proto(int64_val=values.ravel().tolist()).SerializeToString(), 10)[1][0]
