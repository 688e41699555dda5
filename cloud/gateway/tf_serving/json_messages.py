"""Parses and writes the JSON of TensorFlow Serving's predict calls."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cloud.gateway.common.errors import ErrorCode, InvalidError, converting_errors
from cloud.gateway.common.tensors import SizeBudget, Tensor
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.json_writer import write_array
from cloud.gateway.tf_serving.signatures import Signature, find_signature, tensorflow_type
from shared.encoding.compression import Buffer
from shared.messages.tensors import cast_checked

_BASE64 = "b64"
_SHOWN = 60  # Characters of a name in an error message.
_KINDS = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", np.ndarray: "a list"}


class PredictBody(NamedTuple):
    """The parsed body of a predict call."""

    signature: Signature
    inputs: Mapping[str, Tensor]
    is_row: bool  # Row format, `instances` (a list of images); otherwise column format, `inputs` (whole tensors).


def read_predict(body: bytes, *, is_vehicle: bool = False) -> PredictBody:
    """Parses a body in row or column format; the input's name may be omitted.

    Raises:
        ApiError: the body is malformed.
    """
    request = read_object(body)
    formats = [key for key in ("instances", "inputs") if key in request]
    if len(formats) != 1:
        raise InvalidError(
            f"the body has {' and '.join(formats) or 'neither instances nor inputs'}: send one of the two"
        )
    name = request.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidError(f"signature_name is {_describe(name)}: send a string")
    signature = find_signature(name, is_vehicle=is_vehicle)
    is_row = formats[0] == "instances"
    values = request[formats[0]]
    columns = _columns(values, signature.input) if is_row else values
    inputs = columns if _is_named(columns) else {signature.input: columns}
    return PredictBody(signature, {key: _tensor(key, value) for key, value in inputs.items()}, is_row)


def write_predict(outputs: Mapping[str, Tensor], *, is_row: bool, max_bytes: int) -> bytes:
    """Writes the response: a single output without its name, several by name; in row format for each image separately.

    Raises:
        ApiError: the values would take more than `max_bytes`, or an output has an unsupported type.
    """
    for name, tensor in outputs.items():
        tensorflow_type(name, tensor)
    budget = SizeBudget(max_bytes, ", as JSON", ", or use gRPC")
    value: Any
    if len(outputs) < 2:  # noqa: PLR2004
        value = _to_json(next(iter(outputs.values()), []), budget)
    elif is_row:
        rows = zip(*outputs.values(), strict=True)
        value = [{name: _to_json(each, budget) for name, each in zip(outputs, row, strict=True)} for row in rows]
    else:
        value = {name: _to_json(tensor, budget) for name, tensor in outputs.items()}
    return msgspec.json.encode({"predictions" if is_row else "outputs": value})


def _columns(rows: Any, default_name: str) -> dict[str, Any]:
    """Converts the row format to the values of each input; rows are objects by name, or values of the only input."""
    if isinstance(rows, np.ndarray):
        return {default_name: rows}
    if not isinstance(rows, list):
        raise InvalidError(f"instances is {_describe(rows)}: send a list, one entry per image")
    if not any(_is_named(row) for row in rows):
        return {default_name: rows}
    names = rows[0].keys() if _is_named(rows[0]) else set()
    if any(not _is_named(row) or row.keys() != names for row in rows):
        raise InvalidError("instances have different names: send the same inputs in each")
    return {name: [row[name] for row in rows] for name in names}


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() != {_BASE64}


def _tensor(name: str, value: Any) -> Tensor:
    """Converts an input's values to pixels or byte strings."""
    if isinstance(value, list) and value and all(isinstance(each, (dict, str)) for each in value):
        return [_string(name, each) for each in value]
    with converting_errors(ErrorCode.INVALID, f"{name[:_SHOWN]} "):
        return cast_checked(value if isinstance(value, np.ndarray) else _stack(name, value), "uint8")


def _string(name: str, value: Any) -> Buffer:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    encoded = value.get(_BASE64) if value.keys() == {_BASE64} else None
    if not isinstance(encoded, str):
        raise InvalidError(f'{name[:_SHOWN]} has an object that is not {{"b64": "…"}}: send that')
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"{name[:_SHOWN]}: the value of b64 is not base64 ({error})") from error


def _stack(name: str, rows: Any) -> npt.NDArray[Any]:
    """Joins the arrays, or the single numbers, of several images."""
    if not isinstance(rows, list):
        raise InvalidError(f"{name[:_SHOWN]} is {_describe(rows)}: send a list, one entry per image")
    if odd := [each for each in rows if type(each) not in (int, np.ndarray) and each != []]:
        raise InvalidError(f"{name[:_SHOWN]} has {_describe(odd[0])}: send uint8 pixels, whole numbers 0 to 255")
    if len({np.shape(each) for each in rows}) > 1:
        raise InvalidError(f"{name[:_SHOWN]} is ragged: send nested lists of equal lengths")
    return np.array(rows)


def _to_json(value: Any, budget: SizeBudget) -> Any:
    """Converts a tensor or one image's part of it; byte strings are in base64, as TensorFlow Serving writes `…_bytes`."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return msgspec.Raw(write_array(value, budget))
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {_BASE64: msgspec.Raw(budget.charged(b'"' + base64.b64encode(value) + b'"'))}
    return [_to_json(each, budget) for each in value]


def _describe(value: Any) -> str:
    """Describes a value, or the first one in nested lists, in terms of JSON."""
    while isinstance(value, list) and value:
        value = value[0]
    if type(value) in (int, float):
        return f"the number {str(value)[:20]}"
    return _KINDS.get(type(value), "an object")
