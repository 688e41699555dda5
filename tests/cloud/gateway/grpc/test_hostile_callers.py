"""Slow, greedy and broken gRPC callers, while another client is served."""

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from cloud.gateway.grpc.server import MAX_METADATA_BYTES, MAX_STREAMS
from cloud.gateway.grpc.stream import MAX_FAILURES
from cloud.gateway.limits import GatewayTimeouts, TokenBucket
from shared.messages.frame import pack_frame
from shared.messages.protobuf_fields import pack
from tests.support.gateway import WAIT_S, Gate, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

CALLS = 8
GRPC = "127.0.0.1:0"
READY = "/inference.GRPCInferenceService/ServerReady"
INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
ANSWER = "/skylane.v1.Worker/Answer"
STATUS = "/skylane.v1.Worker/Status"
MIB = 1 << 20

Messages = Callable[[], Iterator[bytes]]


@pytest.fixture(name="never")
def _never() -> Iterator[Messages]:
    """Messages that do not arrive until the test ends."""
    ended = threading.Event()

    def messages() -> Iterator[bytes]:
        ended.wait(WAIT_S)
        yield from ()

    yield messages
    ended.set()


@contextmanager
def connected(worker: GatewayWorker, **options: int) -> Iterator[grpc.Channel]:
    """Opens a channel with its own connection."""
    arguments = [("grpc.use_local_subchannel_pool", 1), *((f"grpc.{name}", value) for name, value in options.items())]
    with grpc.insecure_channel(worker.grpc, options=arguments) as channel:
        yield channel


def is_served(worker: GatewayWorker) -> bool:
    """Makes a call over a new connection."""
    with connected(worker) as channel:
        call: Any = channel.unary_unary(READY)
        return bool(call(b"", timeout=WAIT_S))


def is_served_in_time(worker: GatewayWorker) -> bool:
    """Makes a call over a new connection; returns False if it fails or its response is received too late."""
    with suppress(grpc.RpcError):
        return is_served(worker)
    return False


def raw_connection(worker: GatewayWorker) -> socket.socket:
    """Opens a TCP connection."""
    return socket.create_connection(("127.0.0.1", worker.node.ports["grpc"]), timeout=WAIT_S)


def code_of(call: Any) -> grpc.StatusCode:
    """Waits for a call to fail; returns its status code."""
    error = call.exception(WAIT_S)
    code: grpc.StatusCode = error.code()
    return code


def test_incomplete_calls_are_evicted_for_another_connection(never: Messages) -> None:
    """Authenticator that begin calls and send nothing must not block others."""
    with open_gateway(model(), grpc=GRPC, max_calls=CALLS) as worker, connected(worker) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        begun = [begin.future(never()) for _ in range(CALLS + 2)]  # Two more than one connection may have.
        ended: queue.Queue[Any] = queue.Queue()
        for call in begun:
            call.add_done_callback(ended.put)
        refused = [ended.get(timeout=WAIT_S) for _ in range(2)]
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert is_served(worker)
        ended.get(timeout=WAIT_S)
        assert ended.empty()  # Exactly one call was evicted.


def test_a_message_must_arrive_in_time(never: Messages) -> None:
    """A caller that hangs must not occupy a thread forever."""
    with open_gateway(model(), grpc=GRPC, timeouts=GatewayTimeouts(body_s=0.2)) as worker, connected(worker) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        assert code_of(begin.future(never())) is grpc.StatusCode.CANCELLED


def test_a_response_must_be_received_in_time() -> None:
    """Until then it counts towards the bytes that calls may hold."""
    with (
        open_gateway(model(), grpc=GRPC, max_calls=1, timeouts=GatewayTimeouts(send_s=0.2)) as worker,
        raw_connection(worker) as raw,
    ):
        raw.sendall(_preface(window=0) + _call(1, READY) + _data(1, _message(b""), is_last=True))
        assert _until_reset(raw, 1)  # After `send_s`.
        while not is_served_in_time(worker):
            pass  # On a busy machine this caller may be too slow as well.


def test_streams_beyond_the_limit_fail_but_another_connection_is_served() -> None:
    """Each stream occupies a thread for an unlimited time."""
    with open_gateway(model(), grpc=GRPC, max_calls=CALLS) as worker, connected(worker) as channel:
        listen: Any = channel.unary_stream(STATUS)
        streams = [listen(b"") for _ in range(CALLS // 4)]
        assert all(next(stream) for stream in streams)
        with pytest.raises(grpc.RpcError) as raised:
            next(listen(b""))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with connected(worker) as other:
            more: Any = other.unary_stream(STATUS)
            assert next(more(b""))
        assert is_served(worker)


def test_the_calls_of_one_connection_are_limited(never: Messages) -> None:
    """The caller's grpcio delays the next call; other connections are not affected."""
    with open_gateway(model(), grpc=GRPC) as worker, connected(worker) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        begun = [begin.future(never()) for _ in range(MAX_STREAMS)]
        call: Any = channel.unary_unary(READY)
        ends = time.monotonic() + WAIT_S
        while (error := call.future(b"", timeout=0.5).exception(WAIT_S)) is None:  # Not all calls have begun yet.
            assert time.monotonic() < ends
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert is_served(worker)
        begun[0].cancel()
        assert call(b"", timeout=WAIT_S)


def test_the_token_is_checked_before_the_message_arrives(never: Messages, tmp_path: Path) -> None:
    """A caller without a token must not be able to occupy memory."""
    tokens = tmp_path / "tokens"
    tokens.write_text("van 0123456789abcdef\n")
    tokens.chmod(0o600)
    with open_gateway(model(), grpc=GRPC, tokens=tokens) as worker, connected(worker) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        assert code_of(begin.future(never())) is grpc.StatusCode.UNAUTHENTICATED
        assert is_served(worker)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_that_is_too_large_fails_alone(compression: grpc.Compression) -> None:
    """Also if it is compressed; other calls of the same connection are not affected."""
    with open_gateway(model(), grpc=GRPC, max_message_bytes=MIB) as worker, connected(worker) as channel:
        call: Any = channel.unary_unary(ANSWER)
        status: Any = channel.unary_stream(STATUS)
        listening = status(b"")
        assert next(listening)
        large = call.future(bytes(8 * MIB), compression=compression)
        assert code_of(large) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(pack(pack_frame(frame(1))), timeout=WAIT_S)
        assert not listening.done()


def test_the_bytes_of_all_calls_are_limited() -> None:
    """The limit is four times the maximum message size; a call beyond it fails and may be retried."""
    gate = Gate()
    gate.close()
    with open_gateway(model(gate), grpc=GRPC, max_message_bytes=MIB) as worker, connected(worker) as channel:
        infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        calls = [infer.future(_padded_request(900_000)) for _ in range(8)]
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for call in calls:
            call.add_done_callback(ended.put)
        codes = [code_of(ended.get(timeout=WAIT_S)) for _ in range(4)]
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        gate.open()
        assert sum(call.code() is grpc.StatusCode.OK for call in calls) == 4
        assert is_served(worker)


def test_large_metadata_is_rejected() -> None:
    """It is decoded before the token is checked."""
    with open_gateway(model(), grpc=GRPC) as worker, connected(worker) as channel:
        call: Any = channel.unary_unary(READY)
        pending = call.future(b"", metadata=(("x", "y" * (2 * MAX_METADATA_BYTES)),))
        assert code_of(pending) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert is_served(worker)


def test_a_flood_of_failing_requests_ends_its_stream() -> None:
    """Successful requests are limited by the inference; failing ones would cost their caller nothing."""
    with open_gateway(model(), grpc=GRPC) as worker, connected(worker) as channel:
        infer: Any = channel.stream_stream(INFER)
        assert len(list(infer(iter([b""] * MAX_FAILURES), timeout=WAIT_S))) == MAX_FAILURES  # A few are answered.
        responses = infer(iter([b""] * 10_000))
        with pytest.raises(grpc.RpcError) as raised:
            list(responses)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert is_served(worker)


@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    ],
)
def test_other_protocols_affect_only_their_connection(attack: bytes) -> None:
    """Port scanners reach every open port."""
    with (
        open_gateway(model(), grpc=GRPC) as worker,
        raw_connection(worker) as raw,
    ):
        raw.sendall(attack)
        assert is_served(worker)


def test_a_token_bucket_allows_bursts_and_a_rate() -> None:
    """After a burst, tokens return at the configured rate."""
    now_ns = 0
    bucket = TokenBucket(10.0, 3)
    assert [bucket.take(now_ns) for _ in range(4)] == [True, True, True, False]
    now_ns = 100_000_000
    assert [bucket.take(now_ns) for _ in range(2)] == [True, False]


def _padded_request(size: int) -> bytes:
    """A ModelInferRequest that is padded to about `size` bytes."""
    request = service_pb2.ModelInferRequest(model_name="tiny")
    request.parameters["padding"].string_param = "x" * size
    request.inputs.add(name="input", datatype="UINT8", shape=(1, HEIGHT, WIDTH, 3))
    request.raw_input_contents.append(bytes(HEIGHT * WIDTH * 3))
    serialized: bytes = request.SerializeToString()
    return serialized


def _preface(window: int | None = None) -> bytes:
    """The HTTP/2 connection preface; `window` is the initial flow control window of each stream."""
    settings = b"" if window is None else struct.pack(">HI", 4, window)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, settings)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _call(stream: int, path: str) -> bytes:
    fields = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "worker"),
              ("content-type", "application/grpc"), ("te", "trailers"))  # fmt: skip
    block = b"".join(b"\x00" + bytes((len(n),)) + n.encode() + bytes((len(v),)) + v.encode() for n, v in fields)
    return _frame(1, 4, stream, block)


def _message(data: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", len(data)) + data


def _data(stream: int, payload: bytes, *, is_last: bool) -> bytes:
    return _frame(0, int(is_last), stream, payload)


def _until_reset(raw: socket.socket, stream: int) -> bool:
    """Waits until the server resets the stream or closes the connection."""
    received = b""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        data = raw.recv(65536)
        if not data:
            return True
        received += data
        while len(received) >= 9 and len(received) >= 9 + int.from_bytes(received[:3], "big"):
            size = 9 + int.from_bytes(received[:3], "big")
            if received[3] == 3 and int.from_bytes(received[5:9], "big") == stream:
                return True
            received = received[size:]
    return False
