"""The Open Inference Protocol's gRPC service, with the additional calls of Triton's clients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict

from cloud.gateway.common import repository_calls
from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceReply, PendingInference, server_timing, start_inference
from cloud.gateway.grpc.call import FRAME_KEY, GrpcCall, Method, PendingResponse, Services, StreamMethod, parse_message
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.grpc_messages import (
    read_request,
    request_id,
    stream_error,
    stream_response,
    write_response,
)
from cloud.gateway.open_inference.models import JsonObject
from cloud.gateway.open_inference.request import InferRequest, Parameters
from cloud.gateway.open_inference.response import output_tensors
from shared.encoding.protobuf import method_types
from shared.messages.control import ControlReply, Verb

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
        return PendingResponse((), partial(_stream_error, call, request_id(call.data), error))
    return PendingResponse(pending.futures, partial(_stream_response, call, request, pending))


def _stream_response(call: GrpcCall, request: InferRequest, pending: PendingInference) -> bytes:
    try:
        reply = pending.reply()
        response = _response(call, request, reply, {_TIMING: server_timing(reply.first), _IS_LAST: True})
    except ApiError as error:
        return _stream_error(call, request.id, error)
    call.worker.call_counts.add("grpc OK")
    return stream_response(response)


def _stream_error(call: GrpcCall, request_id: str, error: ApiError) -> bytes:
    code = error.code.grpc_code
    call.worker.call_counts.add(f"grpc {code}")
    return stream_error(request_id, f"{code}: {error}")


def _start(call: GrpcCall, request: InferRequest, caller: str) -> PendingInference:
    """Submits the images of a request."""
    return start_inference(call.worker.submission, request.to_call(call.origin(_FRONTEND, caller)))


def _response(
    call: GrpcCall, request: InferRequest, reply: InferenceReply, parameters: Parameters | None = None
) -> Any:
    """Creates a ModelInferResponse."""
    max_bytes = call.worker.settings.max_message_bytes
    return write_response(request, reply.card.version, output_tensors(request, reply), max_bytes, parameters)


def _index(call: GrpcCall, message: Any) -> JsonObject:
    return {"models": repository_calls.index(_control(call, Verb.LIST).models, only_ready=message.ready)}


def _change(verb: Verb) -> Responder:
    def change(call: GrpcCall, message: Any) -> JsonObject:
        repository_calls.check_parameters(message.parameters)
        _control(call, verb, message.model_name)
        return {}

    return change


def _control(call: GrpcCall, verb: Verb, model: str = "") -> ControlReply:
    """Sends a request to control and waits for the reply; control completes it even if the caller cancels."""
    future = repository_calls.send_request(call.worker, call.authenticate(), call.host, verb, model)
    while call.context.is_active():
        try:
            return repository_calls.check_reply(future.result(_CHECK_INTERVAL_S))
        except TimeoutError:
            continue
    raise ApiError(ErrorCode.LATE, "the caller's deadline has passed")


_RESPONDERS: dict[str, Responder] = {
    "ServerMetadata": lambda *_: models.server_metadata(),
    "ModelMetadata": _of_model(models.metadata),
    "ModelConfig": lambda *arguments: {"config": _of_model(models.config)(*arguments)},
    "ModelStatistics": _of_model(models.statistics),
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _change(Verb.LOAD),
    "RepositoryModelUnload": _change(Verb.UNLOAD),
}
_HEALTH_CHECKS: dict[str, Responder] = {  # These need no token.
    "ServerLive": lambda *_: {"live": True},
    "ServerReady": lambda call, _: {"ready": models.is_ready(call.worker)},
    "ModelReady": lambda call, m: {"ready": models.is_ready(call.worker, m.name, m.version or None)},
}
SERVICES: Services = {
    _NAME: {
        **{name: _method(name, responder) for name, responder in _RESPONDERS.items()},
        **{name: _method(name, responder, needs_token=False) for name, responder in _HEALTH_CHECKS.items()},
        "ModelInfer": Method(_infer),
        "ModelStreamInfer": StreamMethod(_open_stream),
    }
}
