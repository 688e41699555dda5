"""Arrays as JSON, held against the json module."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloud.gateway.common.errors import RefusedError
from cloud.gateway.common.size_budget import Room
from cloud.gateway.http.json_writer import write_array


def written(array: npt.NDArray[Any]) -> bytes:
    """With room for all."""
    return write_array(array, Room(1 << 30, "as JSON"))


@given(arrays(st.sampled_from([np.uint8, np.int32, np.float32]), array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_every_number_is_written_exactly(array: npt.NDArray[Any]) -> None:
    """A float32 comes back as the float32 that it was."""
    back = np.array(json.loads(written(array)), array.dtype)
    assert json.loads(written(array)) == array.tolist() or np.isnan(array).any()
    np.testing.assert_array_equal(back.reshape(array.shape), array)


@pytest.mark.parametrize("shape", [(1, 608, 968), (2, 3, 1), (1, 1), (7,), (1100, 1000), (1, 1_100_000), (1_100_000,)])
def test_masks_are_written_as_the_json_module_would(shape: tuple[int, ...]) -> None:
    """Compact, and with nothing in it that a strict reader minds; a large one in several turns."""
    mask = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    assert written(mask) == json.dumps(mask.tolist(), separators=(",", ":")).encode()


def test_a_long_list_is_written_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the json module writes no other thread runs: a map of scores in one go held the whole worker for seconds."""
    sizes: list[int] = []
    dumps = json.dumps

    def counted(values: list[float], **more: Any) -> str:
        sizes.append(len(values))
        return dumps(values, **more)

    given = np.linspace(0, 1, 10_001, dtype=np.float32)
    monkeypatch.setattr(json, "dumps", counted)
    assert json.loads(written(given)) == given.tolist()
    assert max(sizes) <= 4096  # As many as take a millisecond.


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_has_no_room_is_not_written_to_its_end(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of four bytes may take twenty as text: what a caller may ask for must not be what memory it takes."""
    texts: list[int] = []
    text = Room.text

    def counted(room: Room, piece: bytes) -> bytes:
        texts.append(len(piece))
        return text(room, piece)

    monkeypatch.setattr(Room, "text", counted)
    array = np.full((40, 1 << 16), 7, dtype)
    with pytest.raises(RefusedError, match="more than 100000 bytes, as JSON: ask for fewer"):
        write_array(array, Room(100_000, "as JSON"))
    assert sum(texts) < 2 * array[0].nbytes + (1 << 21)
