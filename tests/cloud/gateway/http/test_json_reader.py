"""JSON as the gateway reads it, held against the json module."""

import json
import time
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.http.json_reader import MAX_DEPTH, MAX_KEYS, MAX_VALUES, read_object

Numbers = arrays(
    st.sampled_from([np.uint8, np.int32, np.uint64, np.float64]),
    array_shapes(max_dims=5, max_side=6),
    elements={"allow_nan": False, "allow_infinity": False},
)
SPACES = st.text(" \t\r\n", max_size=3)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc[],1", max_size=3), inner, max_size=3),
    max_leaves=20,
)


def plain(value: Any) -> Any:
    """With lists in the place of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


@given(Numbers, SPACES, SPACES)
def test_numbers_are_read_as_they_were_written(array: npt.NDArray[Any], before: str, behind: str) -> None:
    """Whatever the shape, and wherever JSON allows spaces."""
    text = json.dumps(array.tolist(), separators=(f"{before},{behind}", ":")).replace("[", f"[{behind}")
    read = read_object(b'{"name": "a[1,2]", "values": ' + text.encode() + b"}")["values"]
    np.testing.assert_array_equal(read, array)


@given(st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4))
@example({"a": "[[1,2],[3,4]]", "b": [[5, 6], [7, 8]], "c": [[9, 10], [11, 12]]})
@example({"a": [[], [1]], "b": [{"c": [1]}, {"c": [[1.5], [-2]]}]})
@example({"a": [[1, 2], [3], [4, 5, 6]]})
@example({"a": [[1], 2]})
@example({"a": [1, [2]]})
@example({"a": [0, []]})
@example({"a": [1, True]})
def test_what_is_read_is_what_json_says(told: dict[str, Any]) -> None:
    """Or it is refused, and never read as something else."""
    text = json.dumps(told)
    with suppress(RefusedError):
        assert plain(read_object(text.encode())) == json.loads(text)


@given(st.data())
def test_one_wrong_character_is_never_read_as_another_picture(data: st.DataObject) -> None:
    """Damage to a large body gives an error, not a mask of something else."""
    array = data.draw(arrays(np.uint8, array_shapes(max_dims=4, max_side=6)))
    text = bytearray(json.dumps({"a": array.tolist()}, separators=(",", ":")).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b"[],0 9-"))
    with suppress(RefusedError):
        assert plain(read_object(bytes(text))) == json.loads(text)


@given(st.binary(max_size=60) | st.text('[]{},:"0123456789 -.eEtrufalsn\\', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Anybody may send them."""
    with suppress(RefusedError):
        assert isinstance(read_object(body), dict)


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", Kind.INVALID, "deeper than 16"),
        (b'{"a": ' + b"[" * 129 + b"1" + b"]" * 129 + b"}", Kind.INVALID, "deeper than 16"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", Kind.INVALID, "DEPTH_ERROR"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), Kind.INVALID, "deeper than 16"),
        (json.dumps(dict.fromkeys(map(str, range(MAX_KEYS + 1)))).encode(), Kind.INVALID, "more than 256"),
        (b'{"a": 1, "a": 2}', Kind.INVALID, "has a key twice"),
        (b'{"a": 1, "a\\u0000b": 2}', Kind.INVALID, "a key with NUL"),
        (b'{"a": [' + b"{}," * MAX_VALUES + b"{}]}", Kind.TOO_LARGE, "more than 1048576 values"),
        (b'{"a": NaN}', Kind.INVALID, "is no JSON"),
        (b'{"a": 1e999}', Kind.INVALID, "is no JSON"),
        (b'{"a": "\\ud800"}', Kind.INVALID, "is no JSON"),
        (b'{"a": "\xff"}', Kind.INVALID, "is no JSON"),
    ],
    ids=range(12),
)
def test_what_costs_too_much_or_is_no_json_is_refused(body: bytes, kind: Kind, problem: str) -> None:
    """Lists in lists of four kilobytes used to end a worker."""
    with pytest.raises(RefusedError, match=problem) as raised:
        read_object(body)
    assert raised.value.kind is kind


def test_a_list_of_more_than_simdjson_counts_is_read_whole() -> None:
    """It says of such a list that it has 16,777,215 values."""
    assert read_object(b'{"a": [' + b"1," * (1 << 24) + b"2]}")["a"].shape == ((1 << 24) + 1,)


def test_a_list_that_only_begins_like_one_of_numbers_is_read_once() -> None:
    """Each attempt to read it as numbers goes to its end: tried again for every list in it, it would take hours."""
    rows = b",".join([b"[1,1,1]"] * 300_000)
    began = time.thread_time()
    with pytest.raises(RefusedError, match="something else"):
        read_object(b'{"a": [' + rows + b',["x"]]}')
    assert time.thread_time() - began < 30  # It takes 0.1 s.
