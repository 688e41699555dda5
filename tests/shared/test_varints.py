"""Packed lists of small numbers, held against the library of protocol buffers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.large_fields import split
from shared.protocol_buffers import message_class
from shared.varints import VarintsError, unpack_bytes

_INT_VAL = 7


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
