"""The JSON reader and writer, compared with the json module."""

import json
import time
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloud.gateway.common.tensors import SizeBudget
from cloud.gateway.http.json_body import MAX_DEPTH, MAX_KEYS, MAX_VALUES, MAX_WIDE_BYTES, read_object, write_array
from cloud.serving.errors import ApiError, ErrorCode

Numbers = arrays(st.sampled_from([np.uint8, np.int32, np.int64]), array_shapes(max_dims=5, max_side=6))
SPACES = st.text(" \t\r\n", max_size=3)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc[],1", max_size=3), inner, max_size=3),
    max_leaves=20,
)


def plain(value: Any) -> Any:
    """Replaces arrays by lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


@given(Numbers, SPACES, SPACES)
def test_numbers_are_read_exactly(array: npt.NDArray[Any], before: str, after: str) -> None:
    """Shapes vary, and white space is wherever JSON allows it."""
    text = json.dumps(array.tolist(), separators=(f"{before},{after}", ":")).replace("[", f"[{after}")
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
@example({"a": [(1 << 53) + 1, 0.5], "b": [0.5, (1 << 53) + 1]})
@example({"a": [(1 << 63) - 1, -(1 << 63)], "b": (1 << 63) - 1, "c": -(1 << 63)})
def test_a_document_is_read_as_by_the_json_module_or_rejected(document: dict[str, Any]) -> None:
    """It must never be read as something else."""
    text = json.dumps(document)
    with suppress(ApiError):
        assert plain(read_object(text.encode())) == json.loads(text)


@given(st.data())
def test_a_corrupt_character_never_yields_other_numbers(data: st.DataObject) -> None:
    """Corruption of a large body must cause an error, not the mask of another image."""
    array = data.draw(arrays(np.uint8, array_shapes(max_dims=4, max_side=6)))
    text = bytearray(json.dumps({"a": array.tolist()}, separators=(",", ":")).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b"[],0 9-"))
    with suppress(ApiError):
        assert plain(read_object(bytes(text))) == json.loads(text)


@given(st.binary(max_size=60) | st.text('[]{},:"0123456789 -.eEtrufalsn\\', max_size=60).map(str.encode))
def test_arbitrary_bytes_raise_only_api_errors(body: bytes) -> None:
    """The body is untrusted."""
    with suppress(ApiError):
        assert isinstance(read_object(body), dict)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", ErrorCode.INVALID, "deeper than 16"),
        (b'{"a": ' + b"[" * 129 + b"1" + b"]" * 129 + b"}", ErrorCode.INVALID, "deeper than 16"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", ErrorCode.INVALID, "DEPTH_ERROR"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), ErrorCode.INVALID, "deeper than 16"),
        (json.dumps(dict.fromkeys(map(str, range(MAX_KEYS + 1)))).encode(), ErrorCode.INVALID, "more than 256"),
        (b'{"a": 1, "a": 2}', ErrorCode.INVALID, "has a duplicate key"),
        (b'{"a": 1, "a\\u0000b": 2}', ErrorCode.INVALID, "a key with NUL"),
        (b'{"a": [' + b"{}," * MAX_VALUES + b"{}]}", ErrorCode.TOO_LARGE, "more than 1048576 values"),
        (b'{"a": NaN}', ErrorCode.INVALID, "is not valid JSON"),
        (b'{"a": 1e999}', ErrorCode.INVALID, "is not valid JSON"),
        (b'{"a": "\\ud800"}', ErrorCode.INVALID, "is not valid JSON"),
        (b'{"a": "\xff"}', ErrorCode.INVALID, "is not valid JSON"),
        (b'{"\\ud800": [1]}', ErrorCode.INVALID, "is not valid JSON"),
        (b'{"a": [[1, 0.5], [2, 3]]}', ErrorCode.INVALID, "other values"),
        (b'{"a": [1, 9223372036854775808]}', ErrorCode.INVALID, "more than 64 bits"),
        (b'{"a": [1, "' + b"a" * (1 << 20) + b'"' + b', ""' * (1 << 20) + b"]}", ErrorCode.INVALID, "other values"),
        (b'{"a": "' + "é".encode() + b"x" * MAX_WIDE_BYTES + b'"}', ErrorCode.TOO_LARGE, "non-ASCII text"),
        (b'{"a": "\\u00e9' + b"x" * MAX_WIDE_BYTES + b'"}', ErrorCode.TOO_LARGE, "non-ASCII text"),
    ],
    ids=range(18),
)
def test_expensive_or_malformed_documents_are_rejected(body: bytes, code: ErrorCode, message: str) -> None:
    """Four kilobytes of nested lists once ended a worker."""
    with pytest.raises(ApiError, match=message) as raised:
        read_object(body)
    assert raised.value.code is code


def test_a_list_longer_than_simdjson_counts_is_read_completely() -> None:
    """simdjson reports at most 16,777,215 values."""
    assert read_object(b'{"a": [' + b"1," * (1 << 24) + b"2]}")["a"].shape == ((1 << 24) + 1,)


def test_a_list_that_begins_with_numbers_is_converted_once() -> None:
    """An attempt to read it as numbers reads it completely: repeated for every inner list, it would take hours."""
    rows = b",".join([b"[1,1,1]"] * 300_000)
    start_s = time.thread_time()
    with pytest.raises(ApiError, match="other values"):
        read_object(b'{"a": [' + rows + b',["x"]]}')
    assert time.thread_time() - start_s < 30  # It takes 0.1 s.


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
