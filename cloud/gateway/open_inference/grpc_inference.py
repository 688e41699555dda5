"""The Open Inference Protocol's inferences over gRPC: one a call, or any number on a stream."""

from functools import partial
from typing import Any

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Asked, Reply, ask, server_timing
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import FRAME_KEY, GrpcCall
from cloud.gateway.grpc.service import PendingAnswer
from cloud.gateway.open_inference.grpc_messages import (
    in_stream,
    read_request,
    refused_in_stream,
    request_id,
    write_response,
)
from cloud.gateway.open_inference.request import InferRequest, Parameters
from cloud.gateway.open_inference.response import outputs

_DOOR = "oip-grpc"
_TIMING = "server_timing"  # A parameter, as no metadata stands behind an answer on a stream.
_IS_LAST = "triton_final_response"  # As Triton tells of a request that has no other answer.


class Inference:
    """ModelInfer and ModelStreamInfer."""

    def __init__(self, parts: WorkerContext) -> None:
        self._parts = parts

    def infer(self, call: GrpcCall) -> bytes:
        """Answer a ModelInferRequest with a ModelInferResponse."""
        frame = call.frame
        caller = call.caller(self._parts.callers, frame.id.vehicle if frame else None)
        request = read_request(call.data)
        response: bytes = self.written(request, call.reply(self.asked(call, request, caller))).SerializeToString()
        return response

    def stream(self, call: GrpcCall) -> "InferenceStream":
        """Answer a stream of them.

        Raises:
            RefusedError: a vehicle's frame message comes with it, as if it were of one frame.
        """
        if FRAME_KEY in call.metadata:
            raise RefusedError(Kind.INVALID, f"{FRAME_KEY} tells of one frame: send it with ModelInfer")
        return InferenceStream(self, call.caller(self._parts.callers), self._parts)

    def asked(self, call: GrpcCall, request: InferRequest, caller: str) -> Asked:
        """Hands a request's pictures in."""
        return ask(
            self._parts.door,
            request.call(
                _DOOR,
                caller,
                received_ns=call.received_ns,
                max_reply_bytes=self._parts.settings.max_message_bytes,
                budget_ms=call.budget_ms,
                frame=call.frame,
            ),
        )

    def written(self, request: InferRequest, reply: Reply, parameters: Parameters | None = None) -> Any:
        """A ModelInferResponse."""
        most_bytes = self._parts.settings.max_message_bytes
        return write_response(request, reply.card.version, outputs(request, reply), most_bytes, parameters)


class InferenceStream:
    """What is said on a stream of inferences; see RequestHandler. A request that is refused does not end it."""

    def __init__(self, inference: Inference, caller: str, parts: WorkerContext) -> None:
        self._inference = inference
        self._caller = caller
        self._calls = parts.calls

    def begin(self, call: GrpcCall) -> PendingAnswer:
        """Hand a request's pictures in."""
        try:
            request = read_request(call.data)
            asked = self._inference.asked(call, request, self._caller)
        except RefusedError as error:
            return PendingAnswer((), partial(self._refusal, request_id(call.data), error))
        return PendingAnswer(asked.futures, partial(self._answer, request, asked))

    def _answer(self, request: InferRequest, asked: Asked) -> bytes:
        try:
            reply = asked.reply()
            told: Parameters = {_TIMING: server_timing(reply.first), _IS_LAST: True}
            response = self._inference.written(request, reply, told)
        except RefusedError as error:
            return self._refusal(request.id, error)
        self._calls.add("grpc OK")
        return in_stream(response)

    def _refusal(self, asked_id: str, error: RefusedError) -> bytes:
        code = error.kind.grpc_code
        self._calls.add(f"grpc {code}")
        return refused_in_stream(asked_id, f"{code}: {error}")
