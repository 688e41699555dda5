"""ModelInfer's messages of gRPC."""

from collections.abc import Mapping
from typing import Any

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.grpc.messages import parse
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
from shared.encoding.open_inference_tensors import from_contents
from shared.encoding.protobuf import message_class
from shared.messages.tensors import MAX_TENSORS

_REQUEST = "inference.ModelInferRequest"
_CHOICES = {bool: "bool_param", str: "string_param"}  # Of the parameters that are told.


def read_request(data: Buffer) -> InferRequest:
    """Read a ModelInferRequest.

    Raises:
        RefusedError: it is none, or a tensor is not of its shape and datatype.
    """
    message = parse(_REQUEST, data)
    if (inputs := len(message.inputs)) > MAX_TENSORS:
        raise RefusedError(Kind.INVALID, f"{inputs} inputs: send at most {MAX_TENSORS}")
    for each in message.inputs:
        check_here("input", each.name, each.parameters)
    raws = message.raw_input_contents
    listed = sum(each.HasField("contents") for each in message.inputs)
    if raws and (listed or len(raws) != inputs):
        raise RefusedError(
            Kind.INVALID,
            f"{inputs} inputs come with {len(raws)} raw_input_contents and {listed} contents: "
            "send one raw content for each input, or none",
        )
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=message.id,
        parameters=_parameters(message.parameters),
        inputs=tuple(_input(each, raws[place] if raws else None) for place, each in enumerate(message.inputs)),
        outputs=tuple(WantedOutput(each.name, _parameters(each.parameters)) for each in message.outputs),
    )


def request_id(data: Buffer) -> str:
    """The id in a ModelInferRequest; empty where it has none, or cannot be read."""
    try:
        asked: str = parse(_REQUEST, data).id
    except RefusedError:
        return ""
    return asked


def write_response(
    request: InferRequest,
    version: str,
    outputs: tuple[OutputTensor, ...],
    most_bytes: int,
    parameters: Parameters | None = None,
) -> Any:
    """A ModelInferResponse.

    Raises:
        RefusedError: it takes more than `most_bytes`.
    """
    raws = [each.raw() for each in outputs]
    size = sum(len(part) for parts in raws for part in parts)
    message = message_class("inference.ModelInferResponse")(
        model_name=request.model, model_version=version, id=request.id
    )
    for name, value in (parameters or {}).items():
        setattr(message.parameters[name], _CHOICES[type(value)], value)
    for each in outputs:
        message.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    if (size := size + message.ByteSize()) > most_bytes:
        raise RefusedError(
            Kind.UNPROCESSABLE,
            f"an answer of {size} bytes: at most {most_bytes} are sent; ask for fewer outputs or pictures",
        )
    message.raw_output_contents.extend(b"".join(parts) for parts in raws)
    return message


def in_stream(response: Any) -> bytes:
    """The wire form of a ModelStreamInferResponse with what `write_response` gives."""
    told: bytes = message_class("inference.ModelStreamInferResponse")(infer_response=response).SerializeToString()
    return told


def refused_in_stream(request_id: str, problem: str) -> bytes:
    """The wire form of a ModelStreamInferResponse that says why a request has no answer."""
    told: bytes = message_class("inference.ModelStreamInferResponse")(
        error_message=problem, infer_response={"id": request_id}
    ).SerializeToString()
    return told


def _input(given: Any, raw: bytes | None) -> InputTensor:
    parameters, shape = _parameters(given.parameters), list(given.shape)
    if raw is not None:
        return read_input(given.name, given.datatype, shape, raw, parameters)
    tensor = told(given.name, lambda: from_contents(given.contents, given.datatype, shape))
    return InputTensor(given.name, tensor if tensor.dtype != object else list(tensor.ravel()), parameters)


def _parameters(given: Mapping[str, Any]) -> Parameters:
    named: dict[str, Any] = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            named[name] = getattr(value, kind)
    return named
