"""TensorFlow Serving's JSON: what a predict call holds, and what it is answered with."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Tensor
from cloud.gateway.common.size_budget import Room
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.json_writer import write_array
from cloud.gateway.tf_serving.signatures import Signature, signature, type_of
from shared.encoding.compression import Buffer

_BASE64 = "b64"
_SHOWN = 60
_ROWS, _COLUMNS = ("instances", "predictions"), ("inputs", "outputs")


class PredictBody(NamedTuple):
    """The body of a predict call that has been read."""

    signature: Signature
    inputs: Mapping[str, Tensor]
    is_row: bool  # `instances`, a list of pictures; otherwise `inputs`, the tensors as a whole.


def read_predict(body: bytes, *, is_vehicle: bool = False) -> PredictBody:
    """Read a body in row or column format; a call's only input needs no name.

    Raises:
        RefusedError: it is neither; the message says what was given and what is expected.
    """
    told = read_object(body)
    given = [key for key in (_ROWS[0], _COLUMNS[0]) if key in told]
    if len(given) != 1:
        raise RefusedError(
            Kind.INVALID, f"the body has {' and '.join(given) or 'neither instances nor inputs'}: send one of the two"
        )
    name = told.get("signature_name", "")
    if not isinstance(name, str):
        raise RefusedError(Kind.INVALID, f"signature_name is {_kind(name)}: send a string")
    chosen = signature(name, is_vehicle=is_vehicle)
    is_row = given[0] == _ROWS[0]
    values = told[given[0]]
    inputs = _by_name(values, chosen.input) if is_row else (values if _is_named(values) else {chosen.input: values})
    return PredictBody(chosen, {key: _tensor(key, value) for key, value in inputs.items()}, is_row)


def write_predict(outputs: Mapping[str, Tensor], *, is_row: bool, largest: int) -> bytes:
    """The answer: one output bare, several by their names; in row format of each picture by itself.

    Raises:
        RefusedError: the values would take more than `largest` bytes, or an output is of a type that is not spoken here.
    """
    for name, tensor in outputs.items():
        type_of(name, tensor)
    room = Room(largest, "as JSON", ", or call by gRPC")
    key = (_ROWS if is_row else _COLUMNS)[1]
    if len(outputs) == 1 or not outputs:
        told = _written(next(iter(outputs.values()), []), room)
    elif is_row:
        rows = zip(*outputs.values(), strict=True)
        told = b"[" + b",".join(_object(dict(zip(outputs, row, strict=True)), room) for row in rows) + b"]"
    else:
        told = _object(outputs, room)
    return b'{"' + key.encode() + b'":' + told + b"}"


def listed_bytes(outputs: Mapping[str, Tensor]) -> int:
    """How many bytes of the outputs are to be written."""
    return sum(each.nbytes if isinstance(each, np.ndarray) else sum(map(len, each)) for each in outputs.values())


def _by_name(rows: Any, only: str) -> dict[str, Any]:
    """The values of each input, of rows that are objects by name or the only input's values.

    Raises:
        RefusedError: they are no list, or have not all the same names.
    """
    if isinstance(rows, np.ndarray):
        return {only: rows}
    if not isinstance(rows, list):
        raise RefusedError(Kind.INVALID, f"instances is {_kind(rows)}: send a list, one entry a picture")
    if not any(_is_named(row) for row in rows):
        return {only: rows}
    names = rows[0].keys() if _is_named(rows[0]) else set()
    if any(not _is_named(row) or row.keys() != names for row in rows):
        raise RefusedError(Kind.INVALID, "instances differ in their names: give each the same inputs")
    return {name: [row[name] for row in rows] for name in names}


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() != {_BASE64}


def _tensor(name: str, value: Any) -> Tensor:
    """An input's values as pixels or as byte strings.

    Raises:
        RefusedError: they are neither.
    """
    if isinstance(value, np.ndarray):
        return _pixels(name, value)
    if not isinstance(value, list):
        raise RefusedError(Kind.INVALID, f"{name[:_SHOWN]} is {_kind(value)}: send a list, one entry a picture")
    if value and all(isinstance(each, (dict, str)) for each in value):
        return [_string(name, each) for each in value]
    return _pixels(name, _stacked(name, value))


def _string(name: str, value: Any) -> Buffer:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    encoded = value.get(_BASE64) if value.keys() == {_BASE64} else None
    if not isinstance(encoded, str):
        raise RefusedError(Kind.INVALID, f'{name[:_SHOWN]} holds an object that is not {{"b64": "…"}}: send that')
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(Kind.INVALID, f"{name[:_SHOWN]}: b64 is no base64 ({error})") from error


def _stacked(name: str, values: list[Any]) -> npt.NDArray[Any]:
    """One array of a picture's numbers or lists for each row.

    Raises:
        RefusedError: they are something else, or not all of one size.
    """
    if odd := [each for each in values if type(each) not in (int, float, np.ndarray) and each != []]:
        raise RefusedError(Kind.INVALID, f"{name[:_SHOWN]} holds {_kind(odd[0])}: {_OUTSIDE}")
    if len({np.shape(each) for each in values}) > 1:
        raise RefusedError(Kind.INVALID, f"{name[:_SHOWN]}: its lists are not all of one size: send them full")
    return np.array(values)


def _pixels(name: str, numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if not numbers.size:
        return numbers.astype(np.uint8)
    if numbers.dtype.kind not in "iu":
        broken = numbers[numbers != np.round(numbers)]
        first = (broken if broken.size else numbers).ravel()[0].item()
        raise RefusedError(Kind.INVALID, f"{name[:_SHOWN]} holds {_kind(first)}: {_OUTSIDE}")
    if numbers.min() < 0 or numbers.max() > np.iinfo(np.uint8).max:
        raise RefusedError(Kind.INVALID, f"{name[:_SHOWN]} holds {numbers.min()} to {numbers.max()}: {_OUTSIDE}")
    return numbers.astype(np.uint8)


_OUTSIDE = "send uint8 pixels, whole numbers 0 to 255"


def _object(values: Mapping[str, Any], room: Room) -> bytes:
    members = (json.dumps(name).encode() + b":" + _written(value, room) for name, value in values.items())
    return b"{" + b",".join(members) + b"}"


def _written(value: Any, room: Room) -> bytes:
    """A tensor, or one picture's part of it; byte strings in base64, as TensorFlow Serving writes those of `…_bytes`."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return _written(value.tolist(), room) if value.dtype == object else write_array(value, room)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return room.text(b'{"b64":"' + base64.b64encode(value) + b'"}')
    return b"[" + b",".join(_written(each, room) for each in value) + b"]"


def _kind(value: Any) -> str:
    """What a value is, in JSON's words."""
    if type(value) in (int, float):
        return f"the number {str(value)[:20]}"
    return _KINDS.get(type(value), "an object")


_KINDS = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", np.ndarray: "a list"}
