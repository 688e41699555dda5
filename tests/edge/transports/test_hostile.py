"""Invalid replies of a server fail their frame, within bounds of memory and time."""

import base64
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from urllib3.exceptions import HTTPError

from edge.transports.channel import CallOutcome, ChannelError, Indeterminate, RpcChannel, WorkerCredentials
from edge.transports.grpc_channel import GrpcChannel, SkylaneAdapter
from edge.transports.http_channel import HttpChannel, WorkerHttpClient
from edge.transports.tensorflow_serving import TfServingRestAdapter
from edge.transports.transport import EncodedRequest, Transport
from edge.workers.worker_directory import NoWorkerError
from shared.clock import Deadline
from shared.messages.frame import ResultMessage, Status, pack_result
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.messages.protobuf_fields import pack
from shared.messages.topics import FrameId
from shared.network.endpoint import Endpoint
from tests.edge.transports.conftest import WAIT_S, Open, await_problem
from tests.edge.transports.hostile import Http, grpc, grpc_server, http_server
from tests.support.tiny_model import HEIGHT, WIDTH, frame

ANSWER = ResultMessage(frame(1).id, 1, Status.ANSWERED, "w", model="tiny", shape=(HEIGHT, WIDTH), codec="raw")
MASK = base64.urlsafe_b64encode(pack_result(ANSWER)).decode().rstrip("=")
FOREIGN = (
    base64.urlsafe_b64encode(pack_result(replace(ANSWER, id=FrameId("bus", "left", "s1", 7)))).decode().rstrip("=")
)
REST = ("oip-rest", "tfs-rest")
GRPC = ("grpc", "oip-grpc", "tfs-grpc")


def outcome(transport: Transport) -> ResultMessage | str:
    """Sends a frame; returns its reply, or the reason why it was not delivered."""
    transport.wait_for_card(WAIT_S)
    undelivered: queue.SimpleQueue[str] = queue.SimpleQueue()

    def on_undelivered(reason: str) -> None:
        undelivered.put(reason)
        transport.replies.put(None)

    message = frame(1)
    transport.send(message, transport.pack(message), on_undelivered)
    reply = transport.replies.get(timeout=WAIT_S)
    return undelivered.get() if reply is None else reply.read()


@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (Http.of("200 OK", b"hello"), Status.FAILED, "no Skylane-Mask"),
        (Http.of("200 OK", b"hello", skylane_mask="%%%"), Status.FAILED, "no Skylane-Mask"),
        (Http.of("200 OK", b"hello", skylane_mask="AAAA"), Status.FAILED, "cannot be read"),
        (Http.of("200 OK", b"[" * 100_000, skylane_mask=MASK), Status.FAILED, "cannot be read"),
        (Http.of("200 OK", b'{"predictions":[%s[]]}' % (b"[]," * 300), skylane_mask=MASK), Status.FAILED, "read"),
        (Http.of("200 OK", b"{}", skylane_mask=MASK, inference_header_content_length="-9"), Status.FAILED, "cannot be"),
        (Http.of("200 OK", b'{"predictions":[],"outputs":[]}', skylane_mask=MASK), Status.FAILED, "cannot be read"),
        (Http.of("200 OK", b"", skylane_mask=FOREIGN), Status.FAILED, "cannot be read"),
        (Http.of("302 Found", b"", location="http://127.0.0.1:1/"), Status.REJECTED, "HTTP 302"),
        (Http.of("400 Bad Request", b'{"error": "no \x1b[2Jshape"}'), Status.REJECTED, "no  [2Jshape"),
        (Http.of("408 Request Timeout"), Status.EXPIRED, "HTTP 408"),
        (Http.of("413 Content Too Large", b"at most 9"), Status.REJECTED, "at most 9"),
        (Http.of("429 Too Many Requests"), Status.OVERLOADED, "HTTP 429"),
        (Http.of("500 Internal Server Error"), Status.FAILED, "HTTP 500"),
        (Http.of("200 OK", b"", content_length="10000000000"), Status.FAILED, "too_large"),
        (Http((b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 20)), drips=True), Status.FAILED, "too_large"),
    ],
    ids=lambda value: "" if isinstance(value, Http | Status) else value,
)
def test_an_invalid_http_reply_fails_the_frame(
    name: str, reach: Open, reply: Http, status: Status, reason: str
) -> None:
    """Each has its outcome and reason, and takes no more memory than the largest valid reply."""
    with http_server(lambda _: reply) as address:
        answer = outcome(reach(name, address))
    assert isinstance(answer, ResultMessage)
    assert answer.status is status, answer.reason
    assert reason in answer.reason
    assert answer.id == frame(1).id


@pytest.mark.parametrize("name", REST)
def test_status_503_means_that_the_frame_was_not_delivered(name: str, reach: Open) -> None:
    """The frame would be sent to another worker, but this test has only one."""
    with http_server(lambda _: Http.of("503 Service Unavailable")) as address:
        assert outcome(reach(name, address)) == "no_worker"


@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize(
    "piece",
    [b"", b"\x00\xff" * 50 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab"],
    ids=["nothing", "no HTTP", "cut off"],
)
def test_a_broken_connection_counts_as_a_failure_of_the_worker(name: str, reach: Open, piece: bytes) -> None:
    """It is unknown whether the worker got the frame, so the retrier must handle it."""
    with http_server(lambda _: Http((piece,), hangs_up=True)) as address:
        transport = reach(name, address)
        transport.wait_for_card(WAIT_S)
        message = frame(1)
        transport.send(message, transport.pack(message), lambda _: None)
        assert transport.workers.last_failure_ns(timeout_s=WAIT_S) > 0
        assert transport.replies.empty()


@pytest.mark.parametrize(
    "reply",
    [
        Http((b"HTTP/1.1 100 Continue\r\n\r\n",), drips=True),
        Http((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"), drips=True),
    ],
    ids=["heads", "trailers"],
)
def test_an_endless_reply_times_out(reply: Http) -> None:
    """Each piece is in time and no body grows, so only the timeout for the whole reply ends the call."""
    outcomes: queue.SimpleQueue[CallOutcome] = queue.SimpleQueue()
    with http_server(lambda _: reply) as address:
        channel = HttpChannel(Endpoint.parse(address), TfServingRestAdapter("tiny"), WorkerCredentials(), "car")
        with closing(channel):
            channel.call(EncodedRequest(b""), Deadline.NEVER, 0.3, outcomes.put)
            assert outcomes.get(timeout=WAIT_S) == Indeterminate(is_broken=False)


def test_a_closed_channel_does_not_wait_for_a_server_that_hangs() -> None:
    """The vehicle could not end: the call would last as long as its timeout."""
    outcomes: queue.SimpleQueue[CallOutcome] = queue.SimpleQueue()
    asked, ended = threading.Event(), threading.Event()

    def hang(_: bytes) -> Http:
        asked.set()
        ended.wait(WAIT_S)
        return Http((b"",), hangs_up=True)

    with http_server(hang) as address:
        channel = HttpChannel(Endpoint.parse(address), TfServingRestAdapter("tiny"), WorkerCredentials(), "car")
        channel.call(EncodedRequest(b""), Deadline.NEVER, 3600.0, outcomes.put)
        assert asked.wait(WAIT_S)
        channel.close()
        ended.set()
    assert outcomes.get(timeout=WAIT_S) == Indeterminate(is_broken=True)


def test_sending_a_frame_may_take_longer_than_the_connect_timeout() -> None:
    """A raw frame takes 15 seconds at 1 Mbit/s; a server that accepts none of it is given up in the end."""
    frame_bytes = bytes(1 << 24)  # More than the kernel's buffers hold.
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1])
        client = WorkerHttpClient(endpoint, WorkerCredentials(), "car", max_connections=1, connect_timeout_s=0.2)
        with closing(client):
            sending = thread.submit(client.request, "POST", "/", frame_bytes, timeout_s=WAIT_S, max_bytes=9)
            connection, _ = server.accept()
            with connection:
                threading.Event().wait(0.3)  # Longer than the connect timeout.
                received = 0
                while received < 1 << 24:
                    piece = connection.recv(1 << 20)
                    assert piece, "the client has closed the connection"
                    received += len(piece)
                connection.sendall(b"HTTP/1.1 429 Wait\r\ncontent-length: 0\r\n\r\n")
                assert sending.result(WAIT_S).status == 429
                with pytest.raises(HTTPError):
                    client.request("POST", "/", frame_bytes, timeout_s=0.3, max_bytes=9)


@pytest.mark.parametrize("name", GRPC)
@pytest.mark.parametrize("body", [b"\xff\xff\xff", pack(b"hello"), b""], ids=["no protobuf", "no message", "nothing"])
def test_an_invalid_grpc_reply_fails_the_frame(name: str, reach: Open, body: bytes) -> None:
    """The server is no Skylane worker, or a faulty one."""
    with grpc_server(lambda *_: body) as address:
        answer = outcome(reach(name, address))
    assert isinstance(answer, ResultMessage)
    assert (answer.status, "cannot be read" in answer.reason) == (Status.FAILED, True), answer.reason


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INVALID_ARGUMENT", Status.REJECTED),
        ("NOT_FOUND", Status.REJECTED),
        ("RESOURCE_EXHAUSTED", Status.OVERLOADED),
        ("INTERNAL", Status.FAILED),
        ("UNKNOWN", Status.FAILED),
    ],
)
def test_grpc_status_codes_become_outcomes(reach: Open, code: str, status: Status) -> None:
    """The reason contains the server's message."""

    def refuse(_: bytes, context: Any) -> bytes:
        context.abort(getattr(grpc.StatusCode, code), "no \x1b[2Jsuch thing")
        raise AssertionError

    with grpc_server(refuse) as address:
        answer = outcome(reach("grpc", address))
    assert isinstance(answer, ResultMessage)
    assert (answer.status, answer.reason) == (status, f"{code.lower()}: no  [2Jsuch thing")


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_an_oversized_grpc_reply_is_rejected(reach: Open, compression: Any) -> None:
    """It would fill the memory; compressed, it has only kilobytes."""
    with grpc_server(lambda *_: bytes(MAX_MESSAGE_BYTES + (2 << 20)), compression=compression) as address:
        answer = outcome(reach("grpc", address))
    assert isinstance(answer, ResultMessage)
    assert answer.status is Status.FAILED
    assert answer.reason.startswith("too_large: ")


def test_a_reply_to_another_frame_fails_the_frame(reach: Open) -> None:
    """The mask must not be used for the wrong frame, and the frame must not stay open."""
    foreign = replace(ANSWER, id=FrameId("car", "left", "s1", 7), data=bytes(HEIGHT * WIDTH))
    with grpc_server(lambda *_: pack(pack_result(foreign))) as address:
        answer = outcome(reach("grpc", address))
    assert isinstance(answer, ResultMessage)
    assert answer.status is Status.FAILED
    assert "car/left/s1/7" in answer.reason


@pytest.mark.parametrize("name", ["grpc", "oip-rest"])
def test_an_unreachable_address_is_named(name: str, reach: Open) -> None:
    """The user has to check it."""
    transport = reach(name, "127.0.0.1:1")
    await_problem(transport, "127.0.0.1:1")
    with pytest.raises(NoWorkerError, match=r"127\.0\.0\.1:1: it cannot be reached"):
        transport.wait_for_card(0.0)


def test_a_host_may_be_named_unix(reach: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC takes `unix:80` for a socket file in the working directory."""
    monkeypatch.chdir(tmp_path)
    with grpc_server(lambda *_: pack(b""), at="unix:80"):
        transport = reach("grpc", "unix:80")
        await_problem(transport, "unix:80")
        with pytest.raises(NoWorkerError, match=r"unix:80: .*(cannot be reached|unavailable)"):
            transport.wait_for_card(0.0)


def test_a_grpc_address_given_for_http_is_explained(reach: Open) -> None:
    """Users confuse the two ports of a worker."""
    with grpc_server(lambda *_: b"") as address:
        transport = reach("oip-rest", address)
        await_problem(transport, address)
        with pytest.raises(NoWorkerError, match="the address of its HTTP endpoint"):
            transport.wait_for_card(0.0)


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_a_closed_channel_raises_channel_errors(kind: str) -> None:
    """A thread that calls a worker while the vehicle ends must not cause a traceback."""
    address, credentials = Endpoint("127.0.0.1", 1), WorkerCredentials()
    channel: RpcChannel = (
        GrpcChannel(address, SkylaneAdapter(), credentials, "car")
        if kind == "grpc"
        else HttpChannel(address, TfServingRestAdapter("tiny"), credentials, "car")
    )
    channel.close()
    with pytest.raises(ChannelError, match="closed"):
        next(iter(channel.statuses()))
    with pytest.raises(ChannelError, match="closed"):
        channel.echo(b"")
    channel.probe(b"", lambda *_: pytest.fail("a closed channel has no clock reply"))
