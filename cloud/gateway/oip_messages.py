"""ModelInfer's messages of gRPC: what is large in them is read and written by hand, the rest by the library."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloud.gateway.calls import Tensor
from cloud.gateway.oip_answer import OutputTensor
from cloud.gateway.oip_request import (
    InferRequest,
    InputTensor,
    Parameters,
    WantedOutput,
    check_here,
    read_input,
    told,
)
from cloud.gateway.refusal import Kind, RefusedError
from cloud.gateway.small_messages import parse
from shared.compression import Buffer
from shared.large_fields import FieldsError, cut, head, split
from shared.open_inference_tensors import BYTES, check_count, check_shape, from_contents
from shared.protocol_buffers import message_class
from shared.tensors import MAX_TENSORS, TensorsError
from shared.varints import VarintsError, unpack_bytes

_ID, _INPUTS, _RAW_INPUT_CONTENTS = 3, 5, 7  # The fields' numbers, of the request,
_CONTENTS = 5  # an input,
_UINT_CONTENTS, _BYTES_CONTENTS = 4, 8  # its contents,
_RAW_OUTPUT_CONTENTS = 6  # the answer
_INFER_RESPONSE = 2  # and what a stream has it in.
_CHOICES = {bool: "bool_param", str: "string_param"}  # Of the parameters that are told.
_UINT_CONTENTS_NAME, _BYTES_CONTENTS_NAME = "uint_contents", "bytes_contents"
_PIXELS = "UINT8"


def read_request(data: Buffer) -> InferRequest:
    """Read a ModelInferRequest.

    Raises:
        RefusedError: it is none, or a tensor is not of its shape and datatype.
    """
    message, raws, contents = _divided(data)
    for each in message.inputs:
        check_here("input", each.name, each.parameters)
    listed = sum(map(bool, contents))
    if raws and (listed or len(raws) != len(message.inputs)):
        raise RefusedError(
            Kind.INVALID,
            f"{len(message.inputs)} inputs come with {len(raws)} raw_input_contents and {listed} contents: "
            "send one raw content for each input, or none",
        )
    tensors = (
        _listed(each, b"".join(contents[place]))
        if not raws
        else read_input(each.name, each.datatype, list(each.shape), raws[place], _parameters(each.parameters))
        for place, each in enumerate(message.inputs)
    )
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=message.id,
        parameters=_parameters(message.parameters),
        inputs=tuple(tensors),
        outputs=tuple(WantedOutput(each.name, _parameters(each.parameters)) for each in message.outputs),
    )


def request_id(data: Buffer) -> str:
    """The id in a ModelInferRequest, however little else of it can be read; empty where there is none."""
    try:
        _, ids = split(data, _ID)
        return bytes(ids[-1]).decode() if ids else ""
    except (FieldsError, UnicodeDecodeError):
        return ""


def write_response(
    request: InferRequest,
    version: str,
    outputs: tuple[OutputTensor, ...],
    most_bytes: int,
    parameters: Parameters | None = None,
) -> list[Buffer]:
    """The wire form of a ModelInferResponse, in parts: the numbers are not copied.

    Raises:
        RefusedError: it takes more than `most_bytes`.
    """
    message = message_class("inference.ModelInferResponse")(
        model_name=request.model, model_version=version, id=request.id
    )
    for name, value in (parameters or {}).items():
        setattr(message.parameters[name], _CHOICES[type(value)], value)
    for each in outputs:
        message.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    parts = [message.SerializeToString(), *_raw(outputs)]
    if (size := sum(map(len, parts))) > most_bytes:
        raise RefusedError(
            Kind.UNPROCESSABLE,
            f"an answer of {size} bytes: at most {most_bytes} are sent; ask for fewer outputs or pictures",
        )
    return parts


def in_stream(response: Sequence[Buffer]) -> Sequence[Buffer]:
    """A ModelStreamInferResponse in parts, of what `write_response` gives."""
    return head(_INFER_RESPONSE, sum(map(len, response))), *response


def refused_in_stream(request_id: str, problem: str) -> bytes:
    """A ModelStreamInferResponse that says why a request has no answer."""
    told: bytes = message_class("inference.ModelStreamInferResponse")(
        error_message=problem, infer_response={"id": request_id}
    ).SerializeToString()
    return told


def _raw(outputs: tuple[OutputTensor, ...]) -> Iterator[Buffer]:
    for each in outputs:
        parts = each.raw()
        yield head(_RAW_OUTPUT_CONTENTS, sum(len(part) for part in parts))
        yield from parts


def _divided(data: Buffer) -> tuple[Any, list[memoryview], list[list[memoryview]]]:
    """The message without its tensors' data, the raw contents, and of each input those in lists."""
    contents = []
    try:
        small, large = cut(data, _INPUTS, _RAW_INPUT_CONTENTS)
        if (inputs := len(large[_INPUTS])) > MAX_TENSORS:  # Each may hold as many fields as the whole.
            raise RefusedError(Kind.INVALID, f"{inputs} inputs: send at most {MAX_TENSORS}")
        for entry in large[_INPUTS]:
            others, lists = split(entry, _CONTENTS)
            contents.append(lists)
            small += head(_INPUTS, len(others)) + others
    except FieldsError as error:
        raise RefusedError(Kind.INVALID, f"not an inference.ModelInferRequest: {error}") from error
    return parse("inference.ModelInferRequest", small), large[_RAW_INPUT_CONTENTS], contents


def _listed(given: Any, contents: bytes) -> InputTensor:
    """An input whose values lie in the list of their type."""
    shape = list(given.shape)
    try:
        tensor = told(given.name, lambda: _values(contents, given.datatype, shape))
    except FieldsError as error:
        raise RefusedError(Kind.INVALID, f"not an inference.InferTensorContents: {error}") from error
    return InputTensor(given.name, tensor, _parameters(given.parameters))


def _values(contents: bytes, datatype: str, shape: list[int]) -> Tensor:
    """The values in an InferTensorContents: pixels and strings by hand, all others, which no model takes, within less.

    Raises:
        TensorsError: they are not of their shape and datatype.
        FieldsError: there are none that can be read.
    """
    others, lists = cut(contents, _UINT_CONTENTS, _BYTES_CONTENTS)
    _, count = check_shape(datatype, shape)
    if datatype == BYTES:
        check_count(_BYTES_CONTENTS_NAME, len(lists[_BYTES_CONTENTS]), count, shape)
        return lists[_BYTES_CONTENTS]
    if datatype == _PIXELS and not others:
        try:
            numbers = unpack_bytes(b"".join(lists[_UINT_CONTENTS]))
        except VarintsError as error:
            raise TensorsError(str(error)) from error
        check_count(_UINT_CONTENTS_NAME, len(numbers), count, shape)
        return numbers.reshape(shape)
    return from_contents(parse("inference.InferTensorContents", contents), datatype, shape)


def _parameters(given: Mapping[str, Any]) -> Parameters:
    named: dict[str, Any] = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            named[name] = getattr(value, kind)
    return named
