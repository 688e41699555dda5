"""Converts the messages of ModelInfer and ModelStreamInfer (gRPC)."""

from collections.abc import Mapping
from typing import Any

from cloud.gateway.common.errors import ApiError, InvalidError
from cloud.gateway.common.tensors import SizeBudget
from cloud.gateway.grpc.call import parse_message
from cloud.gateway.open_inference.request import InferRequest, InputTensor, Parameters, RequestedOutput, read_input
from cloud.gateway.open_inference.response import OutputTensor
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import from_contents
from shared.encoding.protobuf import message_class
from shared.messages.tensors import MAX_TENSORS

_REQUEST = "inference.ModelInferRequest"
_PARAMETER_FIELDS = {bool: "bool_param", str: "string_param"}  # Types of the parameters in responses.


def read_request(data: Buffer) -> InferRequest:
    """Parses a ModelInferRequest.

    Raises:
        ApiError: the message is malformed, or a tensor does not match its shape and datatype.
    """
    message = parse_message(_REQUEST, data)
    if (inputs := len(message.inputs)) > MAX_TENSORS:
        raise InvalidError(f"{inputs} inputs: send at most {MAX_TENSORS}")
    raws = message.raw_input_contents
    listed = sum(each.HasField("contents") for each in message.inputs)
    if raws and (listed or len(raws) != inputs):
        raise InvalidError(
            f"{inputs} inputs with {len(raws)} raw_input_contents and {listed} contents: "
            "send one raw content for each input, or none"
        )
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=message.id,
        parameters=_parameters(message.parameters),
        inputs=tuple(_input(each, raws[i] if raws else None) for i, each in enumerate(message.inputs)),
        outputs=tuple(RequestedOutput(each.name, _parameters(each.parameters)) for each in message.outputs),
    )


def request_id(data: Buffer) -> str:
    """Returns the id in a ModelInferRequest; empty if the message has none or is malformed."""
    try:
        id_: str = parse_message(_REQUEST, data).id
    except ApiError:
        return ""
    return id_


def write_response(
    request: InferRequest,
    version: str,
    outputs: tuple[OutputTensor, ...],
    max_bytes: int,
    parameters: Parameters | None = None,
) -> Any:
    """Creates a ModelInferResponse.

    Raises:
        ApiError: the response would be larger than `max_bytes`.
    """
    message = message_class("inference.ModelInferResponse")(
        model_name=request.model, model_version=version, id=request.id
    )
    for name, value in (parameters or {}).items():
        setattr(message.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    for each in outputs:
        message.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    raws = [each.raw() for each in outputs]
    SizeBudget(max_bytes).charge(message.ByteSize() + sum(len(part) for parts in raws for part in parts))
    message.raw_output_contents.extend(b"".join(parts) for parts in raws)
    return message


def stream_response(response: Any) -> bytes:
    """Serializes a ModelStreamInferResponse with a ModelInferResponse."""
    return _serialize_stream_response(infer_response=response)


def stream_error(request_id: str, message: str) -> bytes:
    """Serializes a ModelStreamInferResponse with the error of a request."""
    return _serialize_stream_response(error_message=message, infer_response={"id": request_id})


def _serialize_stream_response(**fields: Any) -> bytes:
    serialized: bytes = message_class("inference.ModelStreamInferResponse")(**fields).SerializeToString()
    return serialized


def _input(message: Any, raw: bytes | None) -> InputTensor:
    shape = list(message.shape)

    def read_contents() -> Any:
        tensor = from_contents(message.contents, message.datatype, shape)
        return tensor if tensor.dtype != object else list(tensor.ravel())

    return read_input(
        message.name, message.datatype, shape, _parameters(message.parameters), raw=raw, read_values=read_contents
    )


def _parameters(messages: Mapping[str, Any]) -> Parameters:
    chosen = ((name, value, value.WhichOneof("parameter_choice")) for name, value in messages.items())
    return {name: getattr(value, kind) for name, value, kind in chosen if kind is not None}
