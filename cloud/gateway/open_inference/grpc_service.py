"""The Open Inference Protocol's gRPC service, with the additional calls of Triton's clients."""

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from cloud.gateway.common import repository_calls
from cloud.gateway.common.auth import CallerIdentity
from cloud.gateway.common.errors import ApiError, ErrorCode
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall, parse_message
from cloud.gateway.grpc.service import Method, StreamMethod
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.grpc_inference import Inference
from shared.encoding.protobuf import method_types
from shared.messages.control import ControlReply, Verb

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
        inference = Inference(self._worker)
        return {name: self._method(name, responder) for name, responder in responders.items()} | {
            "ModelInfer": Method(inference.infer),
            "ModelStreamInfer": StreamMethod(inference.open_stream),
        }

    def _method(self, name: str, responder: Responder) -> Method:
        """Creates a method with small messages, which the protobuf library converts."""
        request_type, response_type = self._types[name]
        needs_token = name not in _WITHOUT_TOKEN

        def respond(call: GrpcCall) -> bytes:
            if needs_token:
                call.authenticate(self._worker.authenticator)
            message = parse_message(request_type.DESCRIPTOR.full_name, call.data)
            response: bytes = ParseDict(dict(responder(call, message)), response_type()).SerializeToString()
            return response

        return Method(respond, needs_token=needs_token)

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
