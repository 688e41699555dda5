"""The Open Inference Protocol's gRPC service, with the additional calls of Triton's clients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict

from cloud.gateway.common import repository_calls
from cloud.gateway.common.auth import CallerIdentity
from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceReply, PendingInference, server_timing, start_inference
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import FRAME_KEY, GrpcCall, parse_message, serialize
from cloud.gateway.grpc.service import Method, PendingResponse, StreamMethod
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.grpc_messages import (
    read_request,
    request_id,
    stream_error,
    stream_response,
    write_response,
)
from cloud.gateway.open_inference.request import InferRequest, Parameters
from cloud.gateway.open_inference.response import output_tensors
from shared.encoding.protobuf import method_types
from shared.messages.control import ControlReply, Verb

_FRONTEND = "oip-grpc"
_TIMING = "server_timing"  # A response parameter: responses of a stream have no trailing metadata.
_IS_LAST = "triton_final_response"  # Triton's mark of the last response to a request.
_CHECK_INTERVAL_S = 0.5  # Interval at which a call that waits for control checks for its cancellation.
_WITHOUT_TOKEN = ("ServerLive", "ServerReady", "ModelReady")  # Health checks.

Responder = Callable[[GrpcCall, Any], Mapping[str, Any]]  # Maps a call and its message to the response's fields.


class OpenInferenceService:
    """`inference.GRPCInferenceService`."""

    name = "inference.GRPCInferenceService"

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker
        self._types = method_types(self.name)

    def methods(self) -> Mapping[str, Method | StreamMethod]:
        """See `Service`."""
        submission = self._worker.submission
        responders: dict[str, Responder] = {
            "ServerLive": lambda *_: {"live": True},
            "ServerReady": lambda *_: {"ready": models.is_ready(submission)},
            "ModelReady": lambda _, m: {"ready": models.is_ready(submission, m.name, m.version or None)},
            "ServerMetadata": lambda *_: models.server_metadata(),
            "ModelMetadata": lambda _, m: models.metadata(submission, m.name, m.version or None),
            "ModelConfig": lambda _, m: {"config": models.config(submission, m.name, m.version or None)},
            "ModelStatistics": lambda _, m: models.statistics(self._worker, m.name, m.version or None),
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": lambda call, m: self._change(call, m, Verb.LOAD),
            "RepositoryModelUnload": lambda call, m: self._change(call, m, Verb.UNLOAD),
        }
        return {name: self._method(name, responder) for name, responder in responders.items()} | {
            "ModelInfer": Method(self._infer),
            "ModelStreamInfer": StreamMethod(self._open_stream),
        }

    def _method(self, name: str, responder: Responder) -> Method:
        """Creates a method with small messages, which the protobuf library converts."""
        request_type, response_type = self._types[name]
        needs_token = name not in _WITHOUT_TOKEN

        def respond(call: GrpcCall) -> bytes:
            if needs_token:
                call.authenticate(self._worker.authenticator)
            message = parse_message(request_type.DESCRIPTOR.full_name, call.data)
            return serialize(ParseDict(dict(responder(call, message)), response_type()))

        return Method(respond, needs_token=needs_token)

    def _infer(self, call: GrpcCall) -> bytes:
        caller = call.authenticate(self._worker.authenticator)
        request = read_request(call.data)
        reply = call.wait_for(_start(self._worker, call, request, caller))
        return serialize(_response(self._worker, request, reply))

    def _open_stream(self, call: GrpcCall) -> "InferenceStream":
        if FRAME_KEY in call.metadata:
            raise InvalidError(f"{FRAME_KEY} describes a single frame: send it with ModelInfer")
        return InferenceStream(self._worker, call.authenticate(self._worker.authenticator))

    def _index(self, call: GrpcCall, message: Any) -> Mapping[str, Any]:
        reply = self._control(call, Verb.LIST)
        return {"models": repository_calls.index(reply.models, only_ready=message.ready)}

    def _change(self, call: GrpcCall, message: Any, verb: Verb) -> Mapping[str, Any]:
        repository_calls.check_parameters(message.parameters)
        self._control(call, verb, message.model_name)
        return {}

    def _control(self, call: GrpcCall, verb: Verb, model: str = "") -> ControlReply:
        """Sends a request to control and waits for the reply; control completes it even if the caller cancels."""
        caller = CallerIdentity(call.authenticate(self._worker.authenticator), call.host)
        future = repository_calls.send_request(self._worker, caller, verb, model)
        while call.context.is_active():
            try:
                return repository_calls.check_reply(future.result(_CHECK_INTERVAL_S))
            except TimeoutError:
                continue
        raise ApiError(ErrorCode.LATE, "the caller's deadline has passed")


class InferenceStream:
    """A stream of inference requests; see `RequestHandler`. A request that fails does not end the stream."""

    def __init__(self, worker: WorkerContext, caller: str) -> None:
        self._worker = worker
        self._caller = caller

    def begin(self, call: GrpcCall) -> PendingResponse:
        """Submits the images of a request."""
        try:
            request = read_request(call.data)
            pending = _start(self._worker, call, request, self._caller)
        except ApiError as error:
            return PendingResponse((), partial(self._error, request_id(call.data), error))
        return PendingResponse(pending.futures, partial(self._respond, request, pending))

    def _respond(self, request: InferRequest, pending: PendingInference) -> bytes:
        try:
            reply = pending.reply()
            parameters: Parameters = {_TIMING: server_timing(reply.first), _IS_LAST: True}
            response = _response(self._worker, request, reply, parameters)
        except ApiError as error:
            return self._error(request.id, error)
        self._worker.call_counts.add("grpc OK")
        return stream_response(response)

    def _error(self, request_id: str, error: ApiError) -> bytes:
        code = error.code.grpc_code
        self._worker.call_counts.add(f"grpc {code}")
        return stream_error(request_id, f"{code}: {error}")


def _start(worker: WorkerContext, call: GrpcCall, request: InferRequest, caller: str) -> PendingInference:
    """Submits the images of a request."""
    return start_inference(worker.submission, request.to_call(call.origin(_FRONTEND, caller, worker)))


def _response(
    worker: WorkerContext, request: InferRequest, reply: InferenceReply, parameters: Parameters | None = None
) -> Any:
    """Creates a ModelInferResponse."""
    max_bytes = worker.settings.max_message_bytes
    return write_response(request, reply.card.version, output_tensors(request, reply), max_bytes, parameters)
