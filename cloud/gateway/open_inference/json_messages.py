"""Inference requests and responses of the Open Inference Protocol as JSON, optionally followed by binary tensors."""

import base64
import binascii
import json
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.gateway.common.errors import InvalidError
from cloud.gateway.common.inference import IMAGES, RESULTS, Tensor
from cloud.gateway.common.size_budget import SizeBudget
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.json_writer import write_array
from cloud.gateway.open_inference.request import (
    InferRequest,
    InputTensor,
    Parameters,
    RequestedOutput,
    check_no_shared_memory,
    decode_raw_input,
    naming_input,
)
from cloud.gateway.open_inference.response import OutputTensor
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, check_shape, dtype_name
from shared.messages.tensors import MAX_TENSORS, TensorsError, cast_checked

_SIZE, _BINARY, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_BASE64 = {"content_type": "base64"}  # MLServer's parameter for strings that are not text.


class ResponseBody(NamedTuple):
    """The body of a response."""

    data: bytes
    json_length: int | None  # Bytes of JSON at the start; None: all.


def read_request(body: bytes, header_length: str | None, model: str, version: str | None) -> InferRequest:
    """Parses the body of a request; `header_length` is the header Inference-Header-Content-Length.

    Raises:
        ApiError: the body is malformed, or a tensor does not match its shape and datatype.
    """
    end = json_length(body, header_length)
    request = read_object(body[:end])
    binary = _BinaryData(memoryview(body)[end:])
    inputs = tuple(_input(each, binary) for each in _objects(request, "inputs"))
    binary.check_all_taken()
    return InferRequest(
        model=model,
        version=version,
        id=_get(request, "id", str, "a string") or "",
        parameters=_parameters(request),
        inputs=inputs,
        outputs=tuple(RequestedOutput(_name(each), _parameters(each)) for each in _objects(request, "outputs")),
    )


def json_length(body: bytes, header_length: str | None) -> int:
    """Returns the number of bytes of a request's body that are JSON.

    Raises:
        ApiError: the header is malformed or exceeds the body's size.
    """
    size = len(body)
    if header_length is None:
        return size
    is_number = header_length.isascii() and header_length.isdigit() and len(header_length) <= len(str(size))
    if not is_number or int(header_length) > size:
        raise InvalidError(
            f"Inference-Header-Content-Length is {header_length[:40]!r}: send the number of JSON bytes, at most {size}"
        )
    return int(header_length)


def write_response(
    request: InferRequest, version: str, outputs: tuple[OutputTensor, ...], max_bytes: int
) -> ResponseBody:
    """Writes the body of a response; each output is binary or JSON, as requested.

    Raises:
        ApiError: the values would take more than `max_bytes`.
    """
    has_json_output = any(not _is_binary(request, output.name) for output in outputs)
    budget = SizeBudget(max_bytes, "as JSON and binary", f", or set {_ALL_BINARY}" if has_json_output else "")
    entries: list[bytes] = []
    binary_parts: list[Buffer] = []
    for output in outputs:
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        data = None
        if _is_binary(request, output.name):
            raw = output.raw()
            size = sum(len(part) for part in raw)
            budget.charge(size)
            entry["parameters"] = {_SIZE: size}
            binary_parts += raw
        elif isinstance(output.values, np.ndarray):
            data = write_array(output.values.reshape(-1), budget)
        elif output.name == RESULTS:
            entry["parameters"] = _BASE64
            data = budget.charged(_dump([base64.b64encode(each).decode() for each in output.values]))
        else:
            data = budget.charged(_dump([bytes(each).decode(errors="replace") for each in output.values]))
        entries.append(_dump_with(entry, "data", data))
    head = {"model_name": request.model, "model_version": version} | ({"id": request.id} if request.id else {})
    text = _dump_with(head, "outputs", b"[" + b",".join(entries) + b"]")
    if not binary_parts:
        return ResponseBody(text, None)
    return ResponseBody(b"".join([text, *binary_parts]), len(text))  # The only copy of the numbers.


def listed_bytes(request: InferRequest, outputs: tuple[OutputTensor, ...]) -> int:
    """Returns the size of the outputs that are written as JSON."""
    return sum(
        output.values.nbytes if isinstance(output.values, np.ndarray) else sum(len(each) for each in output.values)
        for output in outputs
        if not _is_binary(request, output.name)
    )


def _is_binary(request: InferRequest, output: str) -> bool:
    value = next(
        (each.parameters[_BINARY] for each in request.outputs if each.name == output and _BINARY in each.parameters),
        request.parameters.get(_ALL_BINARY),
    )
    return isinstance(value, int) and bool(value)  # bool is an int, an array is not.


class _BinaryData:
    """The data after the JSON, taken input by input."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0

    def take(self, name: str, size: Any) -> memoryview:
        if type(size) is not int or size < 0:
            raise InvalidError(f"input {name[:40]!r}: {_SIZE} is {str(size)[:40]!r}: send a number of bytes")
        remaining = len(self._data) - self._taken
        if size > remaining:
            raise InvalidError(
                f"input {name[:40]!r}: {_SIZE} is {size}, but {remaining} bytes of the body remain: send all data"
            )
        self._taken += size
        return self._data[self._taken - size : self._taken]

    def check_all_taken(self) -> None:
        if remaining := len(self._data) - self._taken:
            raise InvalidError(f"{remaining} bytes of the body belong to no input: send each input's {_SIZE}")


def _input(entry: dict[str, Any], binary: _BinaryData) -> InputTensor:
    name, parameters = _name(entry), _parameters(entry)
    check_no_shared_memory("input", name, parameters)
    datatype = _get(entry, "datatype", str, "a string") or ""
    shape = _shape(name, entry.get("shape"))
    if _SIZE in parameters:
        if "data" in entry:
            raise InvalidError(f"input {name[:40]!r} has both data and {_SIZE}: send one of them")
        return decode_raw_input(name, datatype, shape, binary.take(name, parameters[_SIZE]), parameters)
    if "data" not in entry:
        raise InvalidError(f"input {name[:40]!r} has neither data nor {_SIZE}: send one of them")
    with naming_input(name):
        return InputTensor(name, _tensor(name, datatype, shape, entry["data"]), parameters)


def _tensor(name: str, datatype: str, shape: list[int], data: Any) -> Tensor:
    """Converts values in JSON, which are a flat list or nested as the shape.

    Raises:
        TensorsError: their number or type does not match.
    """
    check_shape(datatype, shape)
    if datatype == BYTES:
        return _strings(name, shape, data)
    dtype = str(dtype_name(datatype))
    kind = np.dtype(dtype).kind
    values = _values(data)
    if values is None or (values.size and values.dtype.kind not in {"b": "b", "f": "fiu"}.get(kind, "iu")):
        raise TensorsError(f"data has values that are not {datatype}: send a list of that type, flat or nested")
    if values.size != prod(shape):
        raise TensorsError(f"data has {values.size} numbers, shape {shape} needs {prod(shape)}: send that many")
    return cast_checked(values, dtype).reshape(shape)


def _values(data: Any) -> npt.NDArray[Any] | None:
    """Converts numbers or booleans in nested lists of equal lengths to an array; returns None for other values."""
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
    """Converts strings in JSON: images are in base64, all others are plain text."""
    listed = data if isinstance(data, list) else []
    texts = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in listed]
    if listed is not data or len(texts) != prod(shape) or not all(isinstance(each, str) for each in texts):
        raise TensorsError(
            f"data must be a list of {prod(shape)} strings, as {BYTES} of shape {shape} needs: send that"
        )
    if name != IMAGES:
        return [each.encode() for each in texts]
    try:
        return [base64.b64decode(each, validate=True) for each in texts]
    except (binascii.Error, ValueError) as error:
        raise TensorsError(f"a string is not base64 ({error}): send images in base64 or as binary data") from error


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _dump_with(fields: dict[str, Any], key: str, json_value: bytes | None) -> bytes:
    """Writes an object as JSON, with an additional key whose value is JSON already."""
    text = _dump(fields)
    return text if json_value is None else text[:-1] + b',"' + key.encode() + b'":' + json_value + b"}"


def _shape(input_name: str, value: Any) -> list[int]:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        shape: list[int] = value.tolist()
        return shape
    if isinstance(value, list) and not value:
        return []
    raise InvalidError(f"input {input_name[:40]!r}: shape must be a list of whole numbers: send that")


def _objects(fields: dict[str, Any], key: str) -> list[dict[str, Any]]:
    objects = _get(fields, key, list, "a list") or []
    if len(objects) > MAX_TENSORS or not all(isinstance(each, dict) for each in objects):
        raise InvalidError(f"{key} has {len(objects)} entries: send a list of at most {MAX_TENSORS} objects")
    return objects


def _name(fields: dict[str, Any]) -> str:
    name: str = _get(fields, "name", str, "a string") or ""
    return name


def _parameters(fields: dict[str, Any]) -> Parameters:
    parameters: Parameters = _get(fields, "parameters", dict, "an object") or {}
    return parameters


def _get(fields: dict[str, Any], key: str, kind: type, expected: str) -> Any:
    value = fields.get(key)
    if value is not None and not isinstance(value, kind):
        raise InvalidError(f"{key} is {str(value)[:40]!r}: send {expected}")
    return value
