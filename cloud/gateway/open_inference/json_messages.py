"""Inference requests and answers of the Open Inference Protocol as JSON, with or without binary data behind it."""

import base64
import binascii
import json
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import IMAGES, RESULTS, Tensor
from cloud.gateway.common.size_budget import Room
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.json_writer import write_array
from cloud.gateway.open_inference.request import (
    InferRequest,
    InputTensor,
    Parameters,
    WantedOutput,
    check_here,
    read_input,
    told,
)
from cloud.gateway.open_inference.response import OutputTensor
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, check_shape, dtype_name
from shared.messages.tensors import MAX_TENSORS, TensorsError, cast_checked

_SIZE, _BINARY, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_BASE64 = {"content_type": "base64"}  # As MLServer says it of strings that are no text.


class Written(NamedTuple):
    """An answer's body, and how much of it is JSON where binary data follows."""

    body: bytes
    header_length: int | None


def read_request(body: bytes, header_length: str | None, model: str, version: str | None) -> InferRequest:
    """Read a request's body; `header_length` is the header Inference-Header-Content-Length.

    Raises:
        RefusedError: it is none, or a tensor is not of its shape and datatype.
    """
    end = json_bytes(body, header_length)
    given = read_object(body[:end])
    binary = _Binary(memoryview(body)[end:])
    inputs = tuple(_input(each, binary) for each in _objects(given, "inputs"))
    binary.check_over()
    return InferRequest(
        model=model,
        version=version,
        id=_of(given, "id", str, "a text") or "",
        parameters=_parameters(given),
        inputs=inputs,
        outputs=tuple(WantedOutput(_name(each), _parameters(each)) for each in _objects(given, "outputs")),
    )


def json_bytes(body: bytes, header_length: str | None) -> int:
    """How many bytes of a request's body are to be read as JSON.

    Raises:
        RefusedError: its header says what cannot be.
    """
    return len(body) if header_length is None else _header_end(header_length, len(body))


def write_answer(request: InferRequest, version: str, outputs: tuple[OutputTensor, ...], largest: int) -> Written:
    """The body of an answer: binary the outputs that were asked for so, the others in its JSON.

    Raises:
        RefusedError: the values would take more than `largest` bytes.
    """
    is_listed = any(not _is_binary(request, output.name) for output in outputs)
    room = Room(largest, "in its JSON and behind it", f", or with {_ALL_BINARY}" if is_listed else "")
    entries: list[bytes] = []
    parts: list[Buffer] = []
    for output in outputs:
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        data = None
        if _is_binary(request, output.name):
            raw = output.raw()
            size = sum(len(part) for part in raw)
            room.take(size)
            entry["parameters"] = {_SIZE: size}
            parts += raw
        elif isinstance(output.values, np.ndarray):
            data = write_array(output.values.reshape(-1), room)
        elif output.name == RESULTS:
            entry["parameters"] = _BASE64
            data = room.text(_written([base64.b64encode(each).decode() for each in output.values]))
        else:
            data = room.text(_written([bytes(each).decode(errors="replace") for each in output.values]))
        entries.append(_with(entry, "data", data))
    told = {"model_name": request.model, "model_version": version} | ({"id": request.id} if request.id else {})
    head = _with(told, "outputs", b"[" + b",".join(entries) + b"]")
    if not parts:
        return Written(head, None)
    return Written(b"".join([head, *parts]), len(head))  # The only copy of the numbers.


def listed_bytes(request: InferRequest, outputs: tuple[OutputTensor, ...]) -> int:
    """How many bytes of the outputs are to be written as JSON."""
    return sum(
        output.values.nbytes if isinstance(output.values, np.ndarray) else sum(len(each) for each in output.values)
        for output in outputs
        if not _is_binary(request, output.name)
    )


def _is_binary(request: InferRequest, output: str) -> bool:
    told = next(
        (each.parameters[_BINARY] for each in request.outputs if each.name == output and _BINARY in each.parameters),
        request.parameters.get(_ALL_BINARY),
    )
    return isinstance(told, int) and bool(told)  # A truth value is one too; an array is neither.


class _Binary:
    """The data behind the JSON, taken piece by piece."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0

    def take(self, name: str, size: Any) -> memoryview:
        if type(size) is not int or size < 0:
            raise RefusedError(Kind.INVALID, f"input {name[:40]!r}: {_SIZE} is {str(size)[:40]!r}: give its bytes")
        left = len(self._data) - self._taken
        if size > left:
            raise RefusedError(
                Kind.INVALID, f"input {name[:40]!r}: {_SIZE} is {size}, but {left} bytes are left of the body: send all"
            )
        self._taken += size
        return self._data[self._taken - size : self._taken]

    def check_over(self) -> None:
        if left := len(self._data) - self._taken:
            raise RefusedError(Kind.INVALID, f"{left} bytes of the body belong to no input: tell each {_SIZE}")


def _header_end(header_length: str, size: int) -> int:
    if not header_length.isascii() or not header_length.isdigit() or len(header_length) > len(str(size)):
        given = header_length[:40]
    elif int(header_length) <= size:
        return int(header_length)
    else:
        given = header_length
    raise RefusedError(
        Kind.INVALID, f"Inference-Header-Content-Length is {given!r}: give the bytes of JSON, of {size} in the body"
    )


def _input(given: dict[str, Any], binary: _Binary) -> InputTensor:
    name, parameters = _name(given), _parameters(given)
    check_here("input", name, parameters)
    datatype = _of(given, "datatype", str, "a text") or ""
    shape = _shape(name, given.get("shape"))
    if _SIZE in parameters:
        if "data" in given:
            raise RefusedError(Kind.INVALID, f"input {name[:40]!r} has data and {_SIZE}: send one of them")
        return read_input(name, datatype, shape, binary.take(name, parameters[_SIZE]), parameters)
    if "data" not in given:
        raise RefusedError(Kind.INVALID, f"input {name[:40]!r} has neither data nor {_SIZE}: send one of them")
    return InputTensor(name, told(name, lambda: _tensor(name, datatype, shape, given["data"])), parameters)


def _tensor(name: str, datatype: str, shape: list[int], data: Any) -> Tensor:
    """The values in JSON: a flat list, or lists as deep as the shape.

    Raises:
        TensorsError: they are of another count or type.
    """
    check_shape(datatype, shape)
    if datatype == BYTES:
        return _strings(name, shape, data)
    dtype = str(dtype_name(datatype))
    kind = np.dtype(dtype).kind
    values = _values(data)
    if values is None or (values.size and values.dtype.kind not in {"b": "b", "f": "fiu"}.get(kind, "iu")):
        raise TensorsError(f"data holds what is no {datatype}: send a list of that type, flat or of the tensor's shape")
    if values.size != prod(shape):
        raise TensorsError(f"data holds {values.size} numbers, shape {shape} takes {prod(shape)}: send that many")
    return cast_checked(values, dtype).reshape(shape)


def _values(data: Any) -> npt.NDArray[Any] | None:
    """Numbers or truth values of JSON, of lists that are all of one size; None where they are something else."""
    if isinstance(data, np.ndarray):
        return data
    if not isinstance(data, list):
        return None
    if {*map(type, data)} <= {bool}:
        return np.array(data, bool)
    lists = [_values(each) if isinstance(each, list) else None for each in data]
    rows = [each for each in lists if each is not None]
    is_even = len(rows) == len(data) and len({each.shape for each in rows}) == 1
    return np.array(rows) if is_even else None


def _strings(name: str, shape: list[int], data: Any) -> list[Buffer]:
    """Strings of JSON: pictures in base64, which no text is, and all others as they are."""
    listed = data if isinstance(data, list) else []
    found = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in listed]
    if listed is not data or len(found) != prod(shape) or not all(isinstance(each, str) for each in found):
        raise TensorsError(f"data is no list of {prod(shape)} strings, as {BYTES} of shape {shape} is: send that")
    if name != IMAGES:
        return [each.encode() for each in found]
    try:
        return [base64.b64decode(each, validate=True) for each in found]
    except (binascii.Error, ValueError) as error:
        raise TensorsError(f"a string is no base64 ({error}): send pictures so, or as binary data") from error


def _with(told: dict[str, Any], key: str, written: bytes | None) -> bytes:
    """An object as JSON, with one more key where its value has been written."""
    own = _written(told)
    return own if written is None else own[:-1] + b',"' + key.encode() + b'":' + written + b"}"


def _written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _shape(input_name: str, given: Any) -> list[int]:
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu":
        sides: list[int] = given.tolist()
        return sides
    if isinstance(given, list) and not given:
        return []
    raise RefusedError(Kind.INVALID, f"input {input_name[:40]!r}: shape is no list of whole numbers: tell every side")


def _objects(given: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = _of(given, key, list, "a list") or []
    if len(found) > MAX_TENSORS or not all(isinstance(each, dict) for each in found):
        raise RefusedError(Kind.INVALID, f"{key}: {len(found)} are there: send a list of at most {MAX_TENSORS} objects")
    return found


def _name(given: dict[str, Any]) -> str:
    name: str = _of(given, "name", str, "a text") or ""
    return name


def _parameters(given: dict[str, Any]) -> Parameters:
    found: Parameters = _of(given, "parameters", dict, "an object") or {}
    return found


def _of(given: dict[str, Any], key: str, kind: type, what: str) -> Any:
    value = given.get(key)
    if value is not None and not isinstance(value, kind):
        raise RefusedError(Kind.INVALID, f"{key} is {str(value)[:40]!r}: send {what}")
    return value
