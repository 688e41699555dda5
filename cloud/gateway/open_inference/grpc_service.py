"""The Open Inference Protocol's gRPC service, with the calls that Triton's clients make besides."""

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from cloud.gateway.common import repository_calls
from cloud.gateway.common.auth import Caller
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall
from cloud.gateway.grpc.messages import parse
from cloud.gateway.grpc.service import Method, StreamMethod
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.grpc_inference import Inference
from shared.encoding.protobuf import method_types
from shared.messages.control import ControlReply, Verb

_LOOK_S = 0.5  # How often a call that loads looks whether anybody still waits.
_OPEN = ("ServerLive", "ServerReady", "ModelReady")  # Whoever watches a worker needs no token.

Answer = Callable[[GrpcCall, Any], Mapping[str, Any]]  # From a message to what its answer holds.


class OpenInferenceService:
    """`inference.GRPCInferenceService`."""

    name = "inference.GRPCInferenceService"

    def __init__(self, parts: WorkerContext) -> None:
        self._parts = parts
        self._types = method_types(self.name)

    def methods(self) -> Mapping[str, Method | StreamMethod]:
        """See grpc_service.Service."""
        door = self._parts.door
        answers: dict[str, Answer] = {
            "ServerLive": lambda *_: {"live": True},
            "ServerReady": lambda *_: {"ready": models.is_ready(door)},
            "ModelReady": lambda _, of: {"ready": models.is_ready(door, of.name, of.version or None)},
            "ServerMetadata": lambda *_: models.server(),
            "ModelMetadata": lambda _, of: models.metadata(door, of.name, of.version or None),
            "ModelConfig": lambda _, of: {"config": models.config(door, of.name, of.version or None)},
            "ModelStatistics": lambda _, of: models.statistics(self._parts, of.name, of.version or None),
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        inference = Inference(self._parts)
        return {name: self._method(name, answer) for name, answer in answers.items()} | {
            "ModelInfer": Method(inference.infer),
            "ModelStreamInfer": StreamMethod(inference.stream),
        }

    def _method(self, name: str, answer: Answer) -> Method:
        """A method whose messages are small: the library reads and writes them."""
        takes, gives = self._types[name]

        def answered(call: GrpcCall) -> bytes:
            if name not in _OPEN:
                call.caller(self._parts.callers)
            message = parse(takes.DESCRIPTOR.full_name, call.data)
            written: bytes = ParseDict(dict(answer(call, message)), gives()).SerializeToString()
            return written

        return Method(answered, is_open=name in _OPEN)

    def _index(self, call: GrpcCall, message: Any) -> Mapping[str, Any]:
        reply = self._ordered(call, Verb.LIST)
        return {"models": repository_calls.index(reply.models, ready_alone=message.ready)}

    def _load(self, call: GrpcCall, message: Any) -> Mapping[str, Any]:
        repository_calls.check_parameters(message.parameters)
        self._ordered(call, Verb.LOAD, message.model_name)
        return {}

    def _unload(self, call: GrpcCall, message: Any) -> Mapping[str, Any]:
        repository_calls.check_parameters(message.parameters)
        self._ordered(call, Verb.UNLOAD, message.model_name)
        return {}

    def _ordered(self, call: GrpcCall, verb: Verb, model: str = "") -> ControlReply:
        """What control replies, as long as somebody waits for it; what is ordered is done all the same."""
        future = repository_calls.order(self._parts, Caller(call.caller(self._parts.callers), call.host), verb, model)
        while call.context.is_active():
            try:
                return repository_calls.checked_reply(future.result(_LOOK_S))
            except TimeoutError:
                continue
        raise RefusedError(Kind.LATE, "the caller's deadline has passed")
