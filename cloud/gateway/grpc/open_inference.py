"""The Open Inference Protocol's gRPC service, with the additional calls of Triton's clients."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict

from cloud.gateway.common import open_inference
from cloud.gateway.common.inference import InferenceReply, PendingInference, server_timing, start_inference
from cloud.gateway.common.open_inference import (
    InferRequest,
    InputTensor,
    JsonObject,
    OutputTensor,
    Parameters,
    RequestedOutput,
    output_tensors,
    read_input,
)
from cloud.gateway.common.tensors import SizeBudget
from cloud.gateway.grpc.call import FRAME_KEY, GrpcCall, Method, PendingResponse, Services, StreamMethod, parse_message
from cloud.serving.errors import ApiError, ErrorCode, InvalidError
from shared.compression import Buffer
from shared.messages.control import ControlReply, Verb
from shared.messages.open_inference_tensors import from_contents
from shared.messages.protobuf import message_class, method_types
from shared.messages.tensors import MAX_TENSORS

_REQUEST = "inference.ModelInferRequest"
_PARAMETER_FIELDS = {bool: "bool_param", str: "string_param"}  # Types of the parameters in responses.


def read_request(data: Buffer) -> InferRequest:
    """Parses a ModelInferRequest."""
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


def write_response(
    request: InferRequest,
    version: str,
    outputs: tuple[OutputTensor, ...],
    max_bytes: int,
    parameters: Parameters | None = None,
) -> Any:
    """Creates a ModelInferResponse of at most `max_bytes`."""
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


_NAME = "inference.GRPCInferenceService"
_FRONTEND = "oip-grpc"
_TIMING = "server_timing"  # A response parameter: responses of a stream have no trailing metadata.
_IS_LAST = "triton_final_response"  # Triton's mark of the last response to a request.
_CHECK_INTERVAL_S = 0.5  # Interval at which a call that waits for control checks for its cancellation.

Responder = Callable[[GrpcCall, Any], Mapping[str, Any]]  # Maps a call and its message to the response's fields.


def _method(name: str, responder: Responder, *, needs_token: bool = True) -> Method:
    """Creates a method with small messages, which the protobuf library converts."""

    def respond(call: GrpcCall) -> bytes:
        request_type, response_type = method_types(_NAME)[name]
        if needs_token:
            call.authenticate()
        message = parse_message(request_type.DESCRIPTOR.full_name, call.data)
        response: bytes = ParseDict(dict(responder(call, message)), response_type()).SerializeToString()
        return response

    return Method(respond, needs_token=needs_token)


def _of_model(describe: Callable[..., JsonObject]) -> Responder:
    """Creates a responder from a function of the worker and the name and version of a model."""
    return lambda call, message: describe(call.worker, message.name, message.version or None)


def _infer(call: GrpcCall) -> bytes:
    caller = call.authenticate()
    request = read_request(call.data)
    response: bytes = _response(call, request, call.wait_for(_start(call, request, caller))).SerializeToString()
    return response


def _open_stream(call: GrpcCall) -> Callable[[GrpcCall], PendingResponse]:
    if FRAME_KEY in call.metadata:
        raise InvalidError(f"{FRAME_KEY} describes a single frame: send it with ModelInfer")
    return partial(_begin, call.authenticate())


def _begin(caller: str, call: GrpcCall) -> PendingResponse:
    """Starts a request of a stream; one that fails does not end its stream."""
    try:
        request = read_request(call.data)
        pending = _start(call, request, caller)
    except ApiError as error:
        return PendingResponse((), partial(_stream_error, call, _request_id(call.data), error))
    return PendingResponse(pending.futures, partial(_stream_response, call, request, pending))


def _stream_response(call: GrpcCall, request: InferRequest, pending: PendingInference) -> bytes:
    try:
        reply = pending.reply()
        response = _response(call, request, reply, {_TIMING: server_timing(reply.first), _IS_LAST: True})
    except ApiError as error:
        return _stream_error(call, request.id, error)
    call.worker.call_counts.add("grpc OK")
    return _stream_message(infer_response=response)


def _stream_error(call: GrpcCall, request_id: str, error: ApiError) -> bytes:
    code = error.code.grpc_code
    call.worker.call_counts.add(f"grpc {code}")
    return _stream_message(error_message=f"{code}: {error}", infer_response={"id": request_id})


def _stream_message(**fields: Any) -> bytes:
    serialized: bytes = message_class("inference.ModelStreamInferResponse")(**fields).SerializeToString()
    return serialized


def _request_id(data: Buffer) -> str:
    """The id in a ModelInferRequest; empty if the message has none or is malformed."""
    with suppress(ApiError):
        return str(parse_message(_REQUEST, data).id)
    return ""


def _start(call: GrpcCall, request: InferRequest, caller: str) -> PendingInference:
    """Submits the images of a request."""
    return start_inference(call.worker.submission, request.to_call(call.terms(_FRONTEND, caller)))


def _response(
    call: GrpcCall, request: InferRequest, reply: InferenceReply, parameters: Parameters | None = None
) -> Any:
    """Creates a ModelInferResponse of at most `max_bytes`."""
    max_bytes = call.worker.config.max_message_bytes
    return write_response(request, reply.card.version, output_tensors(request, reply), max_bytes, parameters)


def _index(call: GrpcCall, message: Any) -> JsonObject:
    return {"models": open_inference.index(_control(call, Verb.LIST).models, only_ready=message.ready)}


def _change(verb: Verb) -> Responder:
    def change(call: GrpcCall, message: Any) -> JsonObject:
        open_inference.check_parameters(message.parameters)
        _control(call, verb, message.model_name)
        return {}

    return change


def _control(call: GrpcCall, verb: Verb, model: str = "") -> ControlReply:
    """Sends a request to control and waits for the reply; control completes it even if the caller cancels."""
    future = open_inference.send_request(call.worker, call.authenticate(), call.host, verb, model)
    while call.context.is_active():
        try:
            return open_inference.check_reply(future.result(_CHECK_INTERVAL_S))
        except TimeoutError:
            continue
    raise ApiError(ErrorCode.LATE, "the caller's deadline has passed")


_RESPONDERS: dict[str, Responder] = {
    "ServerMetadata": lambda *_: open_inference.server_metadata(),
    "ModelMetadata": _of_model(open_inference.metadata),
    "ModelConfig": lambda *arguments: {"config": _of_model(open_inference.config)(*arguments)},
    "ModelStatistics": _of_model(open_inference.statistics),
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _change(Verb.LOAD),
    "RepositoryModelUnload": _change(Verb.UNLOAD),
}
_HEALTH_CHECKS: dict[str, Responder] = {  # These need no token.
    "ServerLive": lambda *_: {"live": True},
    "ServerReady": lambda call, _: {"ready": open_inference.is_ready(call.worker)},
    "ModelReady": lambda call, m: {"ready": open_inference.is_ready(call.worker, m.name, m.version or None)},
}
SERVICES: Services = {
    _NAME: {
        **{name: _method(name, responder) for name, responder in _RESPONDERS.items()},
        **{name: _method(name, responder, needs_token=False) for name, responder in _HEALTH_CHECKS.items()},
        "ModelInfer": Method(_infer),
        "ModelStreamInfer": StreamMethod(_open_stream),
    }
}
