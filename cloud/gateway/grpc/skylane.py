"""Skylane's own gRPC service, with the same messages as over MQTT and one call per frame."""

import threading
from collections.abc import Iterator

from cloud.gateway.grpc.call import GrpcCall, Method, Services, converting_cancellation
from cloud.serving.errors import ErrorCode, converting_errors
from shared.messages.frame import pack_result, unpack_frame
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import pack_status
from shared.messages.protobuf_fields import PackedError, pack, unpack

_CHECK_INTERVAL_S = 0.5  # Interval at which a status stream checks for the end of the worker.


def _infer(call: GrpcCall) -> bytes:
    with converting_errors(ErrorCode.INVALID, errors=(MessageError, PackedError)):
        message = unpack_frame(unpack(call.data), call.received_ns)
    call.authenticate(message.id.vehicle)
    max_bytes = call.worker.config.max_message_bytes
    future = call.worker.submission.put(message, received_ns=call.received_ns, max_reply_bytes=max_bytes)
    call.on_end(future.cancel)
    with converting_cancellation():
        return pack(pack_result(future.result().message))


def _stream_status(call: GrpcCall) -> Iterator[bytes]:
    call.authenticate()
    submission = call.worker.submission
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
        if call.stopping.is_set():
            return
        change = submission.wait_for_change(change, _CHECK_INTERVAL_S, call_ended.is_set)


def _answer_probe(call: GrpcCall) -> bytes:
    vehicle = call.authenticate()
    with converting_errors(ErrorCode.INVALID, errors=(PackedError,)):
        probe = unpack(call.data)
    return pack(call.worker.clock_responder.echo_call(vehicle, probe, call.received_ns))


SERVICES: Services = {
    "skylane.v1.Worker": {
        "Answer": Method(_infer),
        "Status": Method(_stream_status, streams_responses=True),
        "Probe": Method(_answer_probe),
    }
}
