"""Inference requests and responses of the Open Inference Protocol as JSON, optionally followed by binary tensors."""

import base64
import binascii
from typing import Annotated, Any

import msgspec
import numpy as np

from cloud.gateway.common.errors import InvalidError
from cloud.gateway.common.tensors import IMAGES, RESULTS, SizeBudget, Tensor
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.json_writer import write_array
from cloud.gateway.open_inference.request import InferRequest, InputTensor, RequestedOutput, read_input
from cloud.gateway.open_inference.response import OutputTensor
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, check_shape
from shared.messages.tensors import MAX_TENSORS, TensorsError, cast_checked

_SIZE, _BINARY, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_BASE64 = {"content_type": "base64"}  # MLServer's parameter for strings that are not text.


class _JsonOutput(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: dict[str, Any] | None = None


class _JsonInput(msgspec.Struct):
    """An input; lists of whole numbers are arrays."""

    name: str
    datatype: str
    shape: Any
    parameters: dict[str, Any] | None = None
    data: Any = None


class _JsonRequest(msgspec.Struct):
    """The JSON of a request."""

    inputs: Annotated[list[_JsonInput], msgspec.Meta(max_length=MAX_TENSORS)]
    outputs: Annotated[list[_JsonOutput], msgspec.Meta(max_length=MAX_TENSORS)] | None = None
    id: str | None = None
    parameters: dict[str, Any] | None = None


def read_request(body: bytes, header_length: str | None, model: str, version: str | None) -> InferRequest:
    """Parses the body of a request; `header_length` is the header Inference-Header-Content-Length.

    Raises:
        ApiError: the body is malformed, or a tensor does not match its shape and datatype.
    """
    end = json_length(body, header_length)
    try:
        request = msgspec.convert(read_object(body[:end]), _JsonRequest)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the JSON is not an inference request: {error}") from error
    except AttributeError as error:  # msgspec takes an array for a mapping.
        raise InvalidError("the JSON has a list of numbers in place of an object: send an object") from error
    inputs: list[InputTensor] = []
    binary = memoryview(body)[end:]
    for each in request.inputs:
        size = (each.parameters or {}).get(_SIZE)
        raw = None
        if size is not None:
            raw, binary = _split(binary, each.name, size)
        inputs.append(_input(each, raw))
    if binary:
        raise InvalidError(f"{len(binary)} bytes of the body belong to no input: send each input's {_SIZE}")
    outputs = tuple(RequestedOutput(each.name, each.parameters or {}) for each in request.outputs or ())
    return InferRequest(model, version, request.id or "", request.parameters or {}, tuple(inputs), outputs)


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
) -> tuple[bytes, int | None]:
    """Writes the body of a response; each output is binary or JSON, as requested.

    Returns the body, and the number of bytes of JSON at its start if binary data follows.

    Raises:
        ApiError: the values would take more than `max_bytes`.
    """
    has_json_output = any(not _is_binary(request, output.name) for output in outputs)
    budget = SizeBudget(max_bytes, ", as JSON and binary", f", or set {_ALL_BINARY}" if has_json_output else "")
    entries: list[dict[str, Any]] = []
    binary_parts: list[Buffer] = []
    for output in outputs:
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if _is_binary(request, output.name):
            raw = output.raw()
            size = sum(len(part) for part in raw)
            budget.charge(size)
            entry["parameters"] = {_SIZE: size}
            binary_parts += raw
        elif isinstance(output.values, np.ndarray):
            entry["data"] = msgspec.Raw(write_array(output.values.reshape(-1), budget))
        else:
            if output.name == RESULTS:
                entry["parameters"] = _BASE64
                texts = [base64.b64encode(each).decode() for each in output.values]
            else:
                texts = [bytes(each).decode(errors="replace") for each in output.values]
            entry["data"] = msgspec.Raw(budget.charged(msgspec.json.encode(texts)))
        entries.append(entry)
    head = {"model_name": request.model, "model_version": version} | ({"id": request.id} if request.id else {})
    text = msgspec.json.encode({**head, "outputs": entries})
    if not binary_parts:
        return text, None
    return b"".join([text, *binary_parts]), len(text)  # The only copy of the numbers.


def _is_binary(request: InferRequest, output: str) -> bool:
    value = next(
        (each.parameters[_BINARY] for each in request.outputs if each.name == output and _BINARY in each.parameters),
        request.parameters.get(_ALL_BINARY),
    )
    return isinstance(value, int) and bool(value)  # bool is an int, an array is not.


def _split(data: memoryview, name: str, size: Any) -> tuple[memoryview, memoryview]:
    """Splits the binary data of an input from that of the following ones."""
    if type(size) is not int or not 0 <= size <= len(data):
        raise InvalidError(
            f"input {name[:40]!r}: {_SIZE} is {str(size)[:40]!r}, but {len(data)} bytes of the body remain: send all data"
        )
    return data[:size], data[size:]


def _input(entry: _JsonInput, raw: Buffer | None) -> InputTensor:
    if raw is not None and entry.data is not None:
        raise InvalidError(f"input {entry.name[:40]!r} has both data and {_SIZE}: send one of them")
    shape = entry.shape.tolist() if isinstance(entry.shape, np.ndarray) and entry.shape.ndim == 1 else entry.shape
    if not isinstance(shape, list) or (shape and shape is entry.shape):
        raise InvalidError(f"input {entry.name[:40]!r}: shape must be a list of whole numbers: send that")
    return read_input(
        entry.name, entry.datatype, shape, entry.parameters or {}, raw=raw, read_values=lambda: _tensor(entry, shape)
    )


def _tensor(entry: _JsonInput, shape: list[int]) -> Tensor:
    """Converts values in JSON, which are a flat list or nested as the shape.

    Raises:
        TensorsError: their number or type does not match.
    """
    if entry.data is None:
        raise TensorsError(f"has neither data nor {_SIZE}: send one of them")
    dtype, size = check_shape(entry.datatype, shape)
    if entry.datatype == BYTES:
        return _strings(entry.name, size, entry.data)
    if not isinstance(entry.data, np.ndarray):
        raise TensorsError("data has values that are not whole numbers: send a list of whole numbers, flat or nested")
    if entry.data.size != size:
        raise TensorsError(f"data has {entry.data.size} numbers, shape {shape} needs {size}: send that many")
    return cast_checked(entry.data, dtype).reshape(shape)


def _strings(name: str, size: int, data: Any) -> list[Buffer]:
    """Converts strings in JSON: images are in base64, all others are plain text."""
    listed = data if isinstance(data, list) else []
    texts = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in listed]
    if listed is not data or len(texts) != size or not all(isinstance(each, str) for each in texts):
        raise TensorsError(f"data must be a list of {size} strings, as the shape says: send that")
    if name != IMAGES:
        return [each.encode() for each in texts]
    try:
        return [base64.b64decode(each, validate=True) for each in texts]
    except (binascii.Error, ValueError) as error:
        raise TensorsError(f"a string is not base64 ({error}): send images in base64 or as binary data") from error
