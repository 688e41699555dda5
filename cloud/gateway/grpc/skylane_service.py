"""Skylane's own gRPC service, with the same messages as over MQTT and one call per frame."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError

from cloud.gateway.common.errors import ApiError, ErrorCode, converting_errors
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall
from cloud.gateway.grpc.service import Method
from shared.encoding.msgpack_reader import MessageError
from shared.encoding.protobuf_wire import PackedError, pack, unpack
from shared.messages.frame import pack_result, unpack_frame
from shared.messages.node_status import pack_status

_CHECK_INTERVAL_S = 0.5  # Interval at which a status stream checks for the end of the worker.


class SkylaneService:
    """`skylane.v1.Worker`."""

    name = "skylane.v1.Worker"

    def __init__(self, worker: WorkerContext, stopping: threading.Event) -> None:
        self._worker = worker
        self._stopping = stopping

    def methods(self) -> Mapping[str, Method]:
        """See `Service`."""
        return {
            "Answer": Method(self._infer),
            "Status": Method(self._stream_status, streams_responses=True),
            "Probe": Method(self._answer_probe),
        }

    def _infer(self, call: GrpcCall) -> bytes:
        with converting_errors(ErrorCode.INVALID, errors=(MessageError, PackedError)):
            message = unpack_frame(unpack(call.data), call.received_ns)
        call.authenticate(self._worker.authenticator, message.id.vehicle)
        future = self._worker.submission.put(
            message,
            received_ns=call.received_ns,
            max_reply_bytes=self._worker.settings.max_message_bytes,
        )
        call.on_end(future.cancel)
        try:
            reply = future.result().message
        except CancelledError as error:
            raise ApiError(ErrorCode.LATE, "the caller's deadline has passed") from error
        return pack(pack_result(reply))

    def _stream_status(self, call: GrpcCall) -> Iterator[bytes]:
        call.authenticate(self._worker.authenticator)
        submission = self._worker.submission
        last_sent = b""
        change = 0
        call_ended = threading.Event()  # gRPC's own state must not be read while the submission's lock is held.

        def end() -> None:
            call_ended.set()
            submission.recheck_listeners()

        call.on_end(end)
        while not call_ended.is_set():
            status = pack_status(submission.status)
            if status != last_sent:
                last_sent = status
                yield pack(status)
            if self._stopping.is_set():
                return
            change = submission.wait_for_change(change, _CHECK_INTERVAL_S, call_ended.is_set)

    def _answer_probe(self, call: GrpcCall) -> bytes:
        vehicle = call.authenticate(self._worker.authenticator)
        with converting_errors(ErrorCode.INVALID, errors=(PackedError,)):
            probe = unpack(call.data)
        return pack(self._worker.answer_probe(vehicle, probe, call.received_ns))
