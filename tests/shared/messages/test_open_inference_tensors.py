from typing import Any

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor

from shared.messages.open_inference_tensors import datatype_of, dtype_name, from_contents, from_raw, to_raw
from shared.messages.protobuf import message_class
from shared.messages.tensors import DTYPES, TensorsError

SUPPORTED = (*DTYPES, "bool")


def contents(**lists: Any) -> Any:
    """Returns an InferTensorContents message."""
    return message_class("inference.InferTensorContents")(**lists)


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_numbers_round_trip_in_raw_form(dtype: str) -> None:
    """Datatype names are compared with those of Triton's client."""
    given = np.arange(6).reshape(2, 3).astype(dtype)
    datatype = datatype_of(given)
    assert datatype == np_to_triton_dtype(bool if dtype == "bool" else given.dtype.type)
    assert dtype_name(datatype) == dtype
    assert to_raw(given.T) == given.T.tobytes()  # In C order.
    back = from_raw(to_raw(given), datatype, (2, 3))
    assert back.dtype == dtype
    assert np.array_equal(back, given)
    assert not back.flags.writeable


def test_strings_are_encoded_like_tritons_client() -> None:
    """Encoded images are transmitted as strings."""
    given = np.array([[b"one", b""], [b"\0two\xff", b"4"]], object)
    assert to_raw(given) == serialize_byte_tensor(given).item()
    assert deserialize_bytes_tensor(to_raw(given)).tolist() == given.ravel().tolist()
    assert from_raw(to_raw(given), datatype_of(given), (2, 2)).tolist() == given.tolist()


@pytest.mark.parametrize(
    ("datatype", "lists"),
    [
        ("UINT8", {"uint_contents": [0, 255]}),
        ("INT16", {"int_contents": [-32768, 32767]}),
        ("INT64", {"int64_contents": [-1, 1 << 62]}),
        ("UINT64", {"uint64_contents": [0, 1 << 63]}),
        ("BOOL", {"bool_contents": [True, False]}),
        ("FP32", {"fp32_contents": [0.5, -2.0]}),
        ("FP64", {"fp64_contents": [0.1, 1e300]}),
        ("BYTES", {"bytes_contents": [b"a", b"\0"]}),
    ],
)
def test_contents_are_decoded(datatype: str, lists: dict[str, list[Any]]) -> None:
    """Simple gRPC clients fill these fields instead of the raw form."""
    read = from_contents(contents(**lists), datatype, (2,))
    assert read.tolist() == next(iter(lists.values()))
    assert read.dtype.name == {"BYTES": "object"}.get(datatype, dtype_name(datatype))


@pytest.mark.parametrize(
    ("raw", "datatype", "shape", "error"),
    [
        (b"12", "BF16", (1,), "'BF16' is not supported"),
        (b"123", "INT32", (1,), "takes 4 bytes, not 3"),
        (b"", "UINT8", (-1, 3), "below 0"),
        (b"", "FP64", (1 << 20, 1 << 20), "more than 268435456"),
        (b"", "UINT8", (0, 1 << 40), "more than 268435456"),
        (b"", "UINT8", (1,) * 9, "9 dimensions: send at most 8"),
        (b"", "BYTES", (1 << 26,), "more than 4096 strings"),
        (b"", "BYTES", (9,), "end before string 1 of 9"),
        (b"\2\0\0\0a", "BYTES", (1,), "end within string 1 of 1"),
        (b"\1\0\0\0a\0", "BYTES", (2,), "end before string 2 of 2"),
        (b"\1\0\0\0ab", "BYTES", (1,), "more than 1 strings"),
    ],
)
def test_invalid_tensor_is_rejected(raw: bytes, datatype: str, shape: tuple[int, ...], error: str) -> None:
    """No memory is allocated for a false shape."""
    with pytest.raises(TensorsError, match=error):
        from_raw(raw, datatype, shape)


@pytest.mark.parametrize(
    ("lists", "datatype", "error"),
    [
        ({"uint_contents": [1, 256]}, "UINT8", "outside the range of uint8: send 0 to 255"),
        ({"uint_contents": [1]}, "UINT8", "hold 1 in uint_contents"),
        ({"int_contents": [1, 2]}, "UINT8", "hold 0 in uint_contents"),
        ({}, "FP16", "send it raw"),
    ],
)
def test_invalid_contents_are_rejected(lists: dict[str, list[int]], datatype: str, error: str) -> None:
    """Values must be in the field of the datatype, in its range and as many as the shape."""
    with pytest.raises(TensorsError, match=error):
        from_contents(contents(**lists), datatype, (2,))
