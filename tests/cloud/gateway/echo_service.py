"""A gRPC service for tests of its server: it answers with what it is sent."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cloud.gateway.grpc_call import GrpcCall
from cloud.gateway.grpc_conversation import Begun
from cloud.gateway.grpc_service import Conversing, Method
from cloud.gateway.settings import GatewaySettings
from shared.compression import Buffer
from tests.cloud.gateway.grpc_rig import NUMBER, WAIT_S, Caller, Served, caller, served
from tests.http2_peer import (
    GOING,
)

ECHO, HELD = "/test.Service/Echo", "/test.Service/Held"
CALLS = 8
MOST_BYTES = 1 << 20
UNTOLD = -1  # In the place of a code.


def _fail() -> NoReturn:
    raise AssertionError


@dataclass
class Service:
    """Answers with what it is sent, at once or when the test lets it."""

    name: str = "test.Service"
    begun: "queue.SimpleQueue[GrpcCall]" = field(default_factory=queue.SimpleQueue)
    gate: threading.Event = field(default_factory=threading.Event)

    def methods(self) -> dict[str, Method | Conversing]:
        """See Service."""
        return {
            "Echo": Method(lambda call: (call.data,), is_open=True),
            "Held": Method(self._held),
            "Broken": Method(lambda _: _fail()),
            "Talk": Conversing(lambda _: self),
            "Count": Method(lambda call: ((bytes([number]),) for number in range(call.data[0])), is_stream=True),
        }

    def begin(self, call: GrpcCall) -> Begun:
        """See Speaker."""
        return Begun((), lambda: (call.data,))

    def _held(self, call: GrpcCall) -> tuple[Buffer]:
        self.begun.put(call)
        assert self.gate.wait(WAIT_S)
        return (call.data,)


@contextmanager
def serving(**settings: Any) -> Iterator[tuple[Served, Service]]:
    """A server of it."""
    service = Service()
    given: dict[str, Any] = {"grpc": "127.0.0.1:0", "max_calls": CALLS, "max_message_bytes": MOST_BYTES}
    told = GatewaySettings(**(given | settings))
    with served(service, told) as server:
        try:
            yield server, service
        finally:
            service.gate.set()


def is_served(one: Served) -> bool:
    """Whether another caller is answered."""
    with caller(one.server) as other:
        other.ask(1, ECHO, b"other")
        return other.told(1)["grpc-status"] == "0"


def ended(end: Caller) -> int:
    """With which code the server hangs up."""
    code = UNTOLD
    try:
        while True:
            frame = end.next()
            if frame.kind == GOING:
                code = NUMBER.unpack_from(frame.payload, 4)[0]
    except (EOFError, ConnectionError):
        return code
