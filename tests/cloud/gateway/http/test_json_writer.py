"""The JSON writer, compared with the json module."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloud.gateway.common.errors import ApiError
from cloud.gateway.common.size_budget import SizeBudget
from cloud.gateway.http.json_writer import write_array


def write(array: npt.NDArray[Any]) -> bytes:
    """The JSON text of an array, within a large budget."""
    return write_array(array, SizeBudget(1 << 30, "as JSON"))


@given(arrays(st.sampled_from([np.uint8, np.int32, np.float32]), array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_every_number_is_written_exactly(array: npt.NDArray[Any]) -> None:
    """A float32 is read back as the same float32."""
    back = np.array(json.loads(write(array)), array.dtype)
    assert json.loads(write(array)) == array.tolist() or np.isnan(array).any()
    np.testing.assert_array_equal(back.reshape(array.shape), array)


@pytest.mark.parametrize("shape", [(1, 608, 968), (2, 3, 1), (1, 1), (7,), (1100, 1000), (1, 1_100_000), (1_100_000,)])
def test_masks_are_written_as_by_the_json_module(shape: tuple[int, ...]) -> None:
    """The text is compact and valid for strict parsers; large masks are written in several chunks."""
    mask = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    assert write(mask) == json.dumps(mask.tolist(), separators=(",", ":")).encode()


def test_a_long_list_is_written_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The json module blocks all other threads: writing a score map at once blocked the worker for seconds."""
    sizes: list[int] = []
    dumps = json.dumps

    def counted(numbers: list[float], **options: Any) -> str:
        sizes.append(len(numbers))
        return dumps(numbers, **options)

    values = np.linspace(0, 1, 10_001, dtype=np.float32)
    monkeypatch.setattr(json, "dumps", counted)
    assert json.loads(write(values)) == values.tolist()
    assert max(sizes) <= 4096  # These take about a millisecond.


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_writing_stops_when_the_budget_is_exceeded(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of four bytes may take twenty as text; a caller must not determine the memory that is used."""
    sizes: list[int] = []
    charged = SizeBudget.charged

    def counted(budget: SizeBudget, text: bytes) -> bytes:
        sizes.append(len(text))
        return charged(budget, text)

    monkeypatch.setattr(SizeBudget, "charged", counted)
    array = np.full((40, 1 << 16), 7, dtype)
    with pytest.raises(ApiError, match="more than 100000 bytes, as JSON: request fewer"):
        write_array(array, SizeBudget(100_000, "as JSON"))
    assert sum(sizes) < 2 * array[0].nbytes + (1 << 21)
