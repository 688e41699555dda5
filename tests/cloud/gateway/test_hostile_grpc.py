"""gRPC from peers that are broken or mean, beside one that is served."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from cloud.gateway.settings import GatewaySettings
from shared.messages import Status, pack_frame, unpack_mask
from shared.packed import pack, unpack
from tests.cloud.channel import frame, model
from tests.cloud.gateway.rig import WAIT_S, Doors, open_doors

LIMIT = 1 << 20


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_doors(model(), gateway=GatewaySettings(grpc="127.0.0.1:0", max_message_bytes=LIMIT)) as doors:
        yield doors


def answered(doors: Doors) -> bool:
    """Whether a healthy client gets its mask."""
    with grpc.insecure_channel(doors.grpc) as channel:
        answer: Any = channel.unary_unary("/skylane.v1.Worker/Answer")
        reply = answer(pack(pack_frame(frame(1))), timeout=WAIT_S)
    return unpack_mask(bytes(unpack(reply))).status is Status.ANSWERED


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("/skylane.v1.Worker/Answer", bytes(LIMIT + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("/skylane.v1.Worker/Answer", b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
        ("/skylane.v1.Worker/Probe", pack(bytes(600)), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("/skylane.v1.Worker/Nothing", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/nothing.Service/Call", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/tensorflow.serving.PredictionService/Predict", b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
        ("/inference.GRPCInferenceService/ModelInfer", b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_broken_is_refused_in_grpcs_words(
    doors: Doors, method: str, request_: bytes, code: grpc.StatusCode
) -> None:
    """Whatever the service is."""
    with grpc.insecure_channel(doors.grpc) as channel:
        call: Any = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as raised:
            call(request_, timeout=WAIT_S)
    assert raised.value.code() is code
    assert answered(doors)


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff" * 99]
)
def test_bytes_that_are_no_grpc_cost_nobody_else_anything(doors: Doors, garbage: bytes) -> None:
    """Whoever scans a network sends such."""
    host, _, port = doors.grpc.partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as peer:
        peer.sendall(garbage)
        assert answered(doors)


def test_more_calls_than_are_taken_at_a_time_are_refused() -> None:
    """Each has a thread; the others are told at once, not kept waiting."""
    gate, began = threading.Event(), threading.Event()

    def act() -> None:
        began.set()
        assert gate.wait(WAIT_S)

    settings = GatewaySettings(grpc="127.0.0.1:0", max_calls=1)
    with open_doors(model(act), gateway=settings) as doors, grpc.insecure_channel(doors.grpc) as channel:
        answer: Any = channel.unary_unary("/skylane.v1.Worker/Answer")
        first = answer.future(pack(pack_frame(frame(0))), timeout=WAIT_S)
        assert began.wait(WAIT_S)
        with pytest.raises(grpc.RpcError) as raised:
            answer(pack(pack_frame(frame(1))), timeout=WAIT_S)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        gate.set()
        assert unpack_mask(bytes(unpack(first.result()))).status is Status.ANSWERED
