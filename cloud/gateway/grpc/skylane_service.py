"""Skylane's own gRPC service: the messages of the broker, one call a frame."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError

from cloud.gateway.common.clock_probe import echo
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall
from cloud.gateway.grpc.service import Method
from shared.encoding.msgpack_reader import MessageError
from shared.encoding.protobuf_wire import PackedError, pack, unpack
from shared.messages.frame import pack_result, unpack_frame
from shared.messages.node_status import pack_status

_LOOK_S = 0.5  # How often a stream of status looks whether anybody still listens.


class SkylaneService:
    """`skylane.v1.Worker`."""

    name = "skylane.v1.Worker"

    def __init__(self, parts: WorkerContext, stopping: threading.Event) -> None:
        self._parts = parts
        self._stopping = stopping

    def methods(self) -> Mapping[str, Method]:
        """See grpc_service.Service."""
        return {
            "Answer": Method(self._answer),
            "Status": Method(self._status, is_stream=True),
            "Probe": Method(self._probe),
        }

    def _answer(self, call: GrpcCall) -> bytes:
        try:
            message = unpack_frame(_message(call))
        except MessageError as error:
            raise RefusedError(Kind.INVALID, str(error)) from error
        call.caller(self._parts.callers, message.id.vehicle)
        future = self._parts.door.put(
            message,
            received_ns=call.received_ns,
            max_reply_bytes=self._parts.settings.max_message_bytes,
        )
        call.when_over(future.cancel)
        try:
            answer = future.result().message
        except CancelledError as error:
            raise RefusedError(Kind.LATE, "the caller's deadline has passed") from error
        return pack(pack_result(answer))

    def _status(self, call: GrpcCall) -> Iterator[bytes]:
        call.caller(self._parts.callers)
        door = self._parts.door
        told = b""
        seen = 0
        over = threading.Event()  # The call's own state must not be asked for under the door's lock.

        def ended() -> None:
            over.set()
            door.recheck_listeners()

        call.when_over(ended)
        while not over.is_set():
            now = pack_status(door.status)
            if now != told:
                told = now
                yield pack(now)
            if self._stopping.is_set():
                return
            seen = door.wait_for_change(seen, _LOOK_S, over.is_set)

    def _probe(self, call: GrpcCall) -> bytes:
        vehicle = call.caller(self._parts.callers)
        return pack(echo(self._parts, vehicle, _message(call), call.received_ns))


def _message(call: GrpcCall) -> memoryview:
    try:
        return unpack(call.data)
    except PackedError as error:
        raise RefusedError(Kind.INVALID, str(error)) from error
