"""gRPC callers that are slow, greedy or broken, beside one that is served all the while."""

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

from cloud.gateway.bind import ListenError
from cloud.gateway.grpc.limits import TokenBucket
from cloud.gateway.grpc.server import MAX_METADATA_BYTES, MAX_STREAMS
from cloud.gateway.grpc.stream import MAX_FAILURES
from cloud.gateway.settings import GatewaySettings
from shared.encoding.protobuf_wire import pack
from shared.messages.frame import pack_frame
from tests.support.gateway import WAIT_S, Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

CALLS = 8
READY = "/inference.GRPCInferenceService/ServerReady"
INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
ANSWER = "/skylane.v1.Worker/Answer"
STATUS = "/skylane.v1.Worker/Status"
MIB = 1 << 20

Messages = Callable[[], Iterator[bytes]]


@pytest.fixture(name="never")
def _never() -> Iterator[Messages]:
    """Messages that do not come before the test is over."""
    over = threading.Event()

    def messages() -> Iterator[bytes]:
        over.wait(WAIT_S)
        yield from ()

    yield messages
    over.set()


@contextmanager
def connected(doors: Doors, **options: int) -> Iterator[grpc.Channel]:
    """A connection that is shared with no other channel."""
    given = [("grpc.use_local_subchannel_pool", 1), *((f"grpc.{name}", value) for name, value in options.items())]
    with grpc.insecure_channel(doors.grpc, options=given) as channel:
        yield channel


def is_served(doors: Doors) -> bool:
    """Whether a caller with a connection of its own is answered."""
    with connected(doors) as channel:
        ask: Any = channel.unary_unary(READY)
        return bool(ask(b"", timeout=WAIT_S))


def is_served_in_time(doors: Doors) -> bool:
    """Whether a caller is answered, and takes its answer within `answer_s`."""
    with suppress(grpc.RpcError):
        return is_served(doors)
    return False


def raw_connection(doors: Doors) -> socket.socket:
    """A TCP connection on which nothing was sent."""
    return socket.create_connection(("127.0.0.1", doors.node.ports["grpc"]), timeout=WAIT_S)


def code_of(call: Any) -> grpc.StatusCode:
    """The code with which a call ends."""
    error = call.exception(WAIT_S)
    code: grpc.StatusCode = error.code()
    return code


def served(**settings: Any) -> GatewaySettings:
    """A gateway of gRPC alone."""
    return GatewaySettings(grpc="127.0.0.1:0", **settings)


def test_incomplete_calls_give_their_places_to_another_connection(never: Messages) -> None:
    """Authenticator that begin calls and send nothing must not shut the others out."""
    with open_gateway(model(), gateway=served(max_calls=CALLS)) as doors, connected(doors) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        begun = [begin.future(never()) for _ in range(CALLS)]
        codes = [code_of(begin.future(never())) for _ in range(2)]  # Further ones of the same connection are refused.
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert is_served(doors)
        over = threading.Semaphore(0)
        for call in begun:
            call.add_done_callback(lambda _: over.release())
        assert over.acquire(timeout=WAIT_S)  # One gave its place,
        assert not over.acquire(blocking=False)  # and no other.


def test_a_message_must_come_within_its_time(never: Messages) -> None:
    """A caller that hangs must not hold a thread without end."""
    with open_gateway(model(), gateway=served(body_timeout_s=0.2)) as doors, connected(doors) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        assert code_of(begin.future(never())) is grpc.StatusCode.CANCELLED


def test_an_answer_must_be_taken_within_its_time() -> None:
    """Until then it counts against the bytes that calls may hold."""
    with (
        open_gateway(model(), gateway=served(answer_s=0.2, max_calls=1)) as doors,
        raw_connection(doors) as raw,
    ):
        raw.sendall(_greeting(window=0) + _call(1, READY) + _data(1, _message(b""), is_last=True))
        assert _until_reset(raw, 1)  # After `answer_s`.
        while not is_served_in_time(doors):
            pass  # On a busy machine this caller may take its answer too late as well.


def test_too_many_streams_are_refused_and_another_connection_gets_a_place() -> None:
    """Each has a thread for as long as it likes."""
    with open_gateway(model(), gateway=served(max_calls=CALLS)) as doors, connected(doors) as channel:
        listen: Any = channel.unary_stream(STATUS)
        streams = [listen(b"") for _ in range(CALLS // 4)]
        assert all(next(stream) for stream in streams)
        with pytest.raises(grpc.RpcError) as raised:
            next(listen(b""))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with connected(doors) as other:
            more: Any = other.unary_stream(STATUS)
            assert next(more(b""))
        assert is_served(doors)


def test_a_connection_has_a_bounded_number_of_calls(never: Messages) -> None:
    """Its own library holds the next call back; other connections do not wait."""
    with open_gateway(model(), gateway=served()) as doors, connected(doors) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        begun = [begin.future(never()) for _ in range(MAX_STREAMS)]
        ask: Any = channel.unary_unary(READY)
        with pytest.raises(grpc.RpcError) as raised:
            ask(b"", timeout=0.5)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert is_served(doors)
        begun[0].cancel()
        assert ask(b"", timeout=WAIT_S)


def test_a_stranger_is_refused_before_its_message_is_waited_for(never: Messages, tmp_path: Path) -> None:
    """A caller without a token must not be able to fill the memory."""
    tokens = tmp_path / "tokens"
    tokens.write_text("van 0123456789abcdef\n")
    tokens.chmod(0o600)
    with open_gateway(model(), gateway=served(tokens=tokens)) as doors, connected(doors) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        assert code_of(begin.future(never())) is grpc.StatusCode.UNAUTHENTICATED
        assert is_served(doors)


def test_a_worker_of_one_call_at_a_time_answers_it() -> None:
    """The smallest setting works too."""
    with open_gateway(model(), gateway=served(max_calls=1)) as doors:
        assert is_served(doors)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_that_is_too_large_fails_alone(compression: grpc.Compression) -> None:
    """Also one that is small on the wire; another call of the same connection is answered meanwhile."""
    with open_gateway(model(), gateway=served(max_message_bytes=MIB)) as doors, connected(doors) as channel:
        ask: Any = channel.unary_unary(ANSWER)
        status: Any = channel.unary_stream(STATUS)
        listening = status(b"")
        assert next(listening)
        large = ask.future(bytes(8 * MIB), compression=compression)
        assert code_of(large) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask(pack(pack_frame(frame(1))), timeout=WAIT_S)
        assert not listening.done()


def test_an_expired_large_call_fails_alone() -> None:
    """Its connection and the calls beside it go on."""
    gate = threading.Event()

    def act() -> None:
        assert gate.wait(WAIT_S)

    with open_gateway(model(act), gateway=served()) as doors, connected(doors) as channel:
        ask: Any = channel.unary_unary(ANSWER)
        large = ask.future(bytes(32 * MIB), timeout=0.001)
        other = ask.future(pack(pack_frame(frame(1))))
        assert code_of(large) is grpc.StatusCode.DEADLINE_EXCEEDED
        gate.set()
        assert other.result(WAIT_S)


def test_calls_hold_a_bounded_number_of_bytes() -> None:
    """Four times the largest message together; beyond it a call is refused and may be repeated."""
    gate = threading.Event()

    def act() -> None:
        assert gate.wait(WAIT_S)

    with open_gateway(model(act), gateway=served(max_message_bytes=MIB)) as doors, connected(doors) as channel:
        infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        calls = [infer.future(_request_of(900_000)) for _ in range(8)]
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for call in calls:
            call.add_done_callback(ended.put)
        codes = [code_of(ended.get(timeout=WAIT_S)) for _ in range(4)]
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        gate.set()
        assert sum(call.code() is grpc.StatusCode.OK for call in calls) == 4
        assert is_served(doors)


def test_large_metadata_is_refused() -> None:
    """It is unpacked before anything else is looked at."""
    with open_gateway(model(), gateway=served()) as doors, connected(doors) as channel:
        ask: Any = channel.unary_unary(READY)
        call = ask.future(b"", metadata=(("x", "y" * (2 * MAX_METADATA_BYTES)),))
        assert code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert is_served(doors)


def test_a_flood_of_refused_requests_ends_its_stream() -> None:
    """Requests that are answered take an inference each; those that are refused would cost their caller nothing."""
    with open_gateway(model(), gateway=served()) as doors, connected(doors) as channel:
        infer: Any = channel.stream_stream(INFER)
        answers = infer(iter([b""] * 10_000))
        with pytest.raises(grpc.RpcError) as raised:
            list(answers)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert is_served(doors)


def test_a_few_refused_requests_do_not_end_a_stream() -> None:
    """Each has its own refusal."""
    with open_gateway(model(), gateway=served()) as doors, connected(doors) as channel:
        infer: Any = channel.stream_stream(INFER)
        assert len(list(infer(iter([b""] * MAX_FAILURES), timeout=WAIT_S))) == MAX_FAILURES


def test_an_unknown_method_is_unimplemented() -> None:
    """A client for another service learns so."""
    with open_gateway(model(), gateway=served()) as doors, connected(doors) as channel:
        ask: Any = channel.unary_unary("/skylane.v1.Worker/Fly")
        assert code_of(ask.future(b"")) is grpc.StatusCode.UNIMPLEMENTED


def test_idle_connections_have_no_threads() -> None:
    """A thousand of them must not cost a thousand stacks."""
    with open_gateway(model(), gateway=served()) as doors:
        assert is_served(doors)
        before = threading.active_count()
        idle = [raw_connection(doors) for _ in range(200)]
        for each in idle:
            each.sendall(_greeting())
        assert is_served(doors)
        assert threading.active_count() <= before + 2
        for each in idle:
            each.close()


@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        bytes(1000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    ],
)
def test_what_is_no_grpc_ends_its_connection_alone(attack: bytes) -> None:
    """Scanners reach every open port."""
    with (
        open_gateway(model(), gateway=served()) as doors,
        raw_connection(doors) as raw,
    ):
        raw.sendall(attack)
        assert is_served(doors)


def test_a_port_that_is_taken_is_refused() -> None:
    """A second worker must not share the first one's calls by accident."""
    with (
        open_gateway(model(), gateway=served()) as doors,
        pytest.raises(ListenError, match="cannot listen"),
        open_gateway(model(), gateway=GatewaySettings(grpc=doors.grpc)),
    ):
        pass


def test_a_token_bucket_allows_bursts_and_a_rate() -> None:
    """By a clock that the test sets."""
    now_ns = 0
    bucket = TokenBucket(10.0, 3, lambda: now_ns)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now_ns = 100_000_000
    assert [bucket.take() for _ in range(2)] == [True, False]


def _request_of(size: int) -> bytes:
    """An inference whose message is padded to about `size` bytes."""
    request = service_pb2.ModelInferRequest(model_name="tiny")
    request.parameters["padding"].string_param = "x" * size
    request.inputs.add(name="input", datatype="UINT8", shape=(1, HEIGHT, WIDTH, 3))
    request.raw_input_contents.append(bytes(HEIGHT * WIDTH * 3))
    written: bytes = request.SerializeToString()
    return written


def _greeting(window: int | None = None) -> bytes:
    """What an HTTP/2 client sends first; `window`: the bytes that each call's answer may have at first."""
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
    """Whether the server resets a stream, or ends its connection, within the time of the socket."""
    received = b""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
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
