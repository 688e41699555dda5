"""ModelInfer and ModelStreamInfer of the Open Inference Protocol (gRPC)."""

from functools import partial
from typing import Any

from cloud.gateway.common.errors import ApiError, InvalidError
from cloud.gateway.common.inference import InferenceReply, PendingInference, server_timing, start_inference
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import FRAME_KEY, GrpcCall
from cloud.gateway.grpc.service import PendingResponse
from cloud.gateway.open_inference.grpc_messages import (
    read_request,
    request_id,
    stream_error,
    stream_response,
    write_response,
)
from cloud.gateway.open_inference.request import InferRequest, Parameters
from cloud.gateway.open_inference.response import output_tensors

_FRONTEND = "oip-grpc"
_TIMING = "server_timing"  # A response parameter: responses of a stream have no trailing metadata.
_IS_LAST = "triton_final_response"  # Triton's mark of the last response to a request.


class Inference:
    """Processes inference requests."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    def infer(self, call: GrpcCall) -> bytes:
        """Processes a ModelInferRequest; returns a serialized ModelInferResponse."""
        frame = call.frame
        caller = call.authenticate(self._worker.authenticator, frame.id.vehicle if frame else None)
        request = read_request(call.data)
        reply = call.wait_for(self.start(call, request, caller))
        response: bytes = self.response(request, reply).SerializeToString()
        return response

    def open_stream(self, call: GrpcCall) -> "InferenceStream":
        """Opens a stream of requests.

        Raises:
            ApiError: the metadata has a vehicle's frame message, which belongs to a single request.
        """
        if FRAME_KEY in call.metadata:
            raise InvalidError(f"{FRAME_KEY} describes a single frame: send it with ModelInfer")
        return InferenceStream(self, call.authenticate(self._worker.authenticator), self._worker)

    def start(self, call: GrpcCall, request: InferRequest, caller: str) -> PendingInference:
        """Submits the images of a request."""
        return start_inference(self._worker.submission, request.to_call(call.origin(_FRONTEND, caller, self._worker)))

    def response(self, request: InferRequest, reply: InferenceReply, parameters: Parameters | None = None) -> Any:
        """Creates a ModelInferResponse."""
        max_bytes = self._worker.settings.max_message_bytes
        return write_response(request, reply.card.version, output_tensors(request, reply), max_bytes, parameters)


class InferenceStream:
    """A stream of inference requests; see `RequestHandler`. A request that fails does not end the stream."""

    def __init__(self, inference: Inference, caller: str, worker: WorkerContext) -> None:
        self._inference = inference
        self._caller = caller
        self._call_counts = worker.call_counts

    def begin(self, call: GrpcCall) -> PendingResponse:
        """Submits the images of a request."""
        try:
            request = read_request(call.data)
            pending = self._inference.start(call, request, self._caller)
        except ApiError as error:
            return PendingResponse((), partial(self._error, request_id(call.data), error))
        return PendingResponse(pending.futures, partial(self._respond, request, pending))

    def _respond(self, request: InferRequest, pending: PendingInference) -> bytes:
        try:
            reply = pending.reply()
            parameters: Parameters = {_TIMING: server_timing(reply.first), _IS_LAST: True}
            response = self._inference.response(request, reply, parameters)
        except ApiError as error:
            return self._error(request.id, error)
        self._call_counts.add("grpc OK")
        return stream_response(response)

    def _error(self, request_id: str, error: ApiError) -> bytes:
        code = error.code.grpc_code
        self._call_counts.add(f"grpc {code}")
        return stream_error(request_id, f"{code}: {error}")
