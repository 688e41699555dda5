"""The JSON writer, compared with the json module."""

import json
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloud.gateway.common.tensors import SizeBudget
from cloud.gateway.http.json_body import write_array
from cloud.serving.errors import ApiError


def write(array: npt.NDArray[Any]) -> bytes:
    """The JSON text of an array, within a large budget."""
    return write_array(array, SizeBudget(1 << 30))


@given(arrays(st.sampled_from([np.uint8, np.int32, np.float32]), array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_every_number_is_written_exactly(array: npt.NDArray[Any]) -> None:
    """A float32 is read back as the same float32."""
    back = np.array(json.loads(write(array)), array.dtype)
    assert json.loads(write(array)) == array.tolist() or np.isnan(array).any()
    np.testing.assert_array_equal(back.reshape(array.shape), array)


@pytest.mark.parametrize("shape", [(1, 608, 968), (2, 3, 1), (1, 1), (7,), (1100, 1000), (1, 1_100_000), (1_100_000,)])
def test_large_arrays_are_written_in_pieces(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is compact and valid for strict parsers. A large array at once would block all other threads."""
    sizes: list[int] = []
    encode = msgspec.json.encode

    def counted(rows: Any) -> bytes:
        sizes.append(np.size(rows))
        return encode(rows)

    monkeypatch.setattr(msgspec.json, "encode", counted)
    mask = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    assert write(mask) == json.dumps(mask.tolist(), separators=(",", ":")).encode()
    assert max(sizes) <= 1 << 13  # These take about a millisecond.


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_writing_stops_when_the_budget_is_exceeded(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of four bytes may take twenty as text; a caller must not determine the memory that is used."""
    sizes: list[int] = []
    charge = SizeBudget.charge

    def counted(budget: SizeBudget, size: int) -> None:
        sizes.append(size)
        charge(budget, size)

    monkeypatch.setattr(SizeBudget, "charge", counted)
    with pytest.raises(ApiError, match="more than 100000 bytes, as JSON: request fewer"):
        write_array(np.full((40, 1 << 16), 7, dtype), SizeBudget(100_000, ", as JSON"))
    assert sum(sizes) < 200_000
