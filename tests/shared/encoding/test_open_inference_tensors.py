"""Tensors of the Open Inference Protocol as arrays, held against Triton's own client."""

from typing import Any

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor

from shared.encoding.open_inference_tensors import datatype_of, dtype_name, from_contents, from_raw, to_raw
from shared.encoding.protobuf import message_class
from shared.messages.tensors import DTYPES, TensorsError

SPOKEN = (*DTYPES, "bool")


def contents(**lists: Any) -> Any:
    """An InferTensorContents."""
    return message_class("inference.InferTensorContents")(**lists)


@pytest.mark.parametrize("dtype", SPOKEN)
def test_numbers_travel_raw_under_tritons_names(dtype: str) -> None:
    """The names are what a server chooses its types by."""
    given = np.arange(6).reshape(2, 3).astype(dtype)
    datatype = datatype_of(given)
    assert datatype == np_to_triton_dtype(bool if dtype == "bool" else given.dtype.type)
    assert dtype_name(datatype) == dtype
    assert to_raw(given.T) == given.T.tobytes()  # In C order, whatever the array's own.
    back = from_raw(to_raw(given), datatype, (2, 3))
    assert back.dtype == dtype
    assert np.array_equal(back, given)
    assert not back.flags.writeable


def test_strings_travel_as_tritons_client_writes_them() -> None:
    """Encoded pictures travel as strings."""
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
def test_numbers_travel_in_lists_too(datatype: str, lists: dict[str, list[Any]]) -> None:
    """Plain gRPC clients fill these, as no raw form has to be made."""
    read = from_contents(contents(**lists), datatype, (2,))
    assert read.tolist() == next(iter(lists.values()))
    assert read.dtype.name == {"BYTES": "object"}.get(datatype, dtype_name(datatype))


@pytest.mark.parametrize(
    ("raw", "datatype", "shape", "told"),
    [
        (b"12", "BF16", (1,), "'BF16' is not spoken here"),
        (b"123", "INT32", (1,), "takes 4 bytes, not 3"),
        (b"", "UINT8", (-1, 3), "below 0"),
        (b"", "FP64", (1 << 20, 1 << 20), "more than 268435456"),
        (b"", "UINT8", (0, 1 << 40), "more than 268435456"),
        (b"", "UINT8", (1,) * 9, "9 sides: send at most 8"),
        (b"", "BYTES", (1 << 26,), "more than 4096 strings"),
        (b"", "BYTES", (9,), "end before string 1 of 9"),
        (b"\2\0\0\0a", "BYTES", (1,), "end within string 1 of 1"),
        (b"\1\0\0\0a\0", "BYTES", (2,), "end before string 2 of 2"),
        (b"\1\0\0\0ab", "BYTES", (1,), "more than 1 strings"),
    ],
)
def test_what_is_no_tensor_is_told(raw: bytes, datatype: str, shape: tuple[int, ...], told: str) -> None:
    """Anybody may send one; no memory is taken for a shape that is a lie."""
    with pytest.raises(TensorsError, match=told):
        from_raw(raw, datatype, shape)


@pytest.mark.parametrize(
    ("lists", "datatype", "told"),
    [
        ({"uint_contents": [1, 256]}, "UINT8", "none of uint8: send 0 to 255"),
        ({"uint_contents": [1]}, "UINT8", "hold 1 in uint_contents"),
        ({"int_contents": [1, 2]}, "UINT8", "hold 0 in uint_contents"),
        ({}, "FP16", "send it raw"),
    ],
)
def test_a_list_that_does_not_fit_is_told(lists: dict[str, list[int]], datatype: str, told: str) -> None:
    """Numbers of another list are no numbers of this one."""
    with pytest.raises(TensorsError, match=told):
        from_contents(contents(**lists), datatype, (2,))
