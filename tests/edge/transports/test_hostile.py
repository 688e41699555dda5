"""What a worker's door says is not to be trusted: nonsense fails its frame, and takes neither memory nor time."""

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

from edge.reliability.worker_directory import NoWorkerError
from edge.transports.channel import ChannelError, Line, Outcome, Silent
from edge.transports.credentials import Security
from edge.transports.grpc.channel import GrpcChannel
from edge.transports.http.channel import HttpChannel
from edge.transports.http.connection_pool import connections
from edge.transports.protocols.skylane import SkylaneAdapter
from edge.transports.protocols.tensorflow_serving import TfServingRestAdapter
from edge.transports.transport import EncodedRequest, Transport
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.encoding.protobuf_wire import pack
from shared.messages.frame import ResultMessage, Status, pack_result
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
    """What becomes of a frame: its answer, or why it reached nobody."""
    transport.wait_for_card(WAIT_S)
    unreached: queue.SimpleQueue[str] = queue.SimpleQueue()

    def unreachable(reason: str) -> None:
        unreached.put(reason)
        transport.replies.put(None)

    message = frame(1)
    transport.send(message, transport.pack(message), unreachable)
    reply = transport.replies.get(timeout=WAIT_S)
    return unreached.get() if reply is None else reply.read()


@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize(
    ("said", "status", "reason"),
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
def test_an_http_server_that_speaks_nonsense_fails_the_frame(
    name: str, reach: Open, said: Http, status: Status, reason: str
) -> None:
    """Each has its outcome and its reason, and none more memory than the largest answer."""
    with http_server(lambda _: said) as address:
        answer = outcome(reach(name, address))
    assert isinstance(answer, ResultMessage)
    assert answer.status is status, answer.reason
    assert reason in answer.reason
    assert answer.id == frame(1).id


@pytest.mark.parametrize("name", REST)
def test_a_server_that_says_it_stops_has_not_got_the_frame(name: str, reach: Open) -> None:
    """Another worker may; here is none."""
    with http_server(lambda _: Http.of("503 Service Unavailable")) as address:
        assert outcome(reach(name, address)) == "no_worker"


@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize(
    "said",
    [b"", b"\x00\xff" * 50 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab"],
    ids=["nothing", "no HTTP", "cut off"],
)
def test_a_connection_that_breaks_leaves_the_frame_to_be_sent_again(name: str, reach: Open, said: bytes) -> None:
    """Whether it was received nobody knows: the retrier is told that something was lost."""
    with http_server(lambda _: Http((said,), hangs_up=True)) as address:
        transport = reach(name, address)
        transport.wait_for_card(WAIT_S)
        message = frame(1)
        transport.send(message, transport.pack(message), lambda _: None)
        assert transport.departed_ns(timeout_s=WAIT_S) > 0
        assert transport.replies.empty()


@pytest.mark.parametrize(
    "said",
    [
        Http((b"HTTP/1.1 100 Continue\r\n\r\n",), drips=True),
        Http((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"), drips=True),
    ],
    ids=["heads", "trailers"],
)
def test_an_answer_without_end_is_over_with_its_time(said: Http) -> None:
    """Each piece is in time, and no body grows: the call would hold its thread and its place for ever."""
    over: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    with http_server(lambda _: said) as address:
        line = HttpChannel(Endpoint.parse(address), TfServingRestAdapter("tiny"), Security(), "car", most_calls=1)
        with closing(line):
            line.call(EncodedRequest((b"",)), None, 0.3, over.put)
            assert over.get(timeout=WAIT_S) == Silent(is_broken=False)


def test_a_frame_may_take_longer_to_send_than_to_connect() -> None:
    """A raw frame takes a quarter of a minute at a megabit a second; who takes none of it is given up in the end."""
    frame_bytes = bytes(1 << 24)  # More than the kernel takes by itself.
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1])
        with connections(endpoint, Security(), 1, connect_s=0.2) as pool:
            sending = thread.submit(pool.urlopen, "POST", "/", frame_bytes, retries=False, timeout=WAIT_S)
            connection, _ = server.accept()
            with connection:
                threading.Event().wait(0.3)  # Longer than there is to connect.
                taken = 0
                while taken < 1 << 24:
                    piece = connection.recv(1 << 20)
                    assert piece, "the vehicle has hung up"
                    taken += len(piece)
                connection.sendall(b"HTTP/1.1 429 Wait\r\ncontent-length: 0\r\n\r\n")
                assert sending.result(WAIT_S).status == 429
                with pytest.raises(HTTPError):
                    pool.urlopen("POST", "/", frame_bytes, retries=False, timeout=0.3)


@pytest.mark.parametrize("name", GRPC)
@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"\xff\xff\xff", "cannot be read"), (pack(b"hello"), "cannot be read"), (b"", "cannot be read")],
    ids=["no protocol buffer", "no message", "nothing"],
)
def test_a_grpc_server_that_speaks_nonsense_fails_the_frame(name: str, reach: Open, body: bytes, reason: str) -> None:
    """It is no worker of ours, or one whose memory is broken."""
    with grpc_server(lambda *_: body) as address:
        answer = outcome(reach(name, address))
    assert isinstance(answer, ResultMessage)
    assert (answer.status, reason in answer.reason) == (Status.FAILED, True), answer.reason


@pytest.mark.parametrize("name", GRPC)
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
def test_grpcs_codes_are_outcomes(name: str, reach: Open, code: str, status: Status) -> None:
    """With the server's words."""

    def refuse(_: bytes, context: Any) -> bytes:
        context.abort(getattr(grpc.StatusCode, code), "no \x1b[2Jsuch thing")
        raise AssertionError

    with grpc_server(refuse) as address:
        answer = outcome(reach(name, address))
    assert isinstance(answer, ResultMessage)
    assert (answer.status, answer.reason) == (status, f"{code.lower()}: no  [2Jsuch thing")


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_an_answer_of_grpc_that_is_too_large_is_not_taken(reach: Open, compression: Any) -> None:
    """It would be all the memory there is; compressed, it comes in kilobytes."""
    with grpc_server(lambda *_: bytes(MAX_MESSAGE_BYTES + (2 << 20)), compression=compression) as address:
        answer = outcome(reach("grpc", address))
    assert isinstance(answer, ResultMessage)
    assert answer.status is Status.FAILED
    assert answer.reason.startswith("too_large: ")


def test_an_answer_to_another_frame_is_none_to_this_one(reach: Open) -> None:
    """A worker that mixes calls up must not have its masks taken for another frame's, nor the frame be lost to it."""
    foreign = replace(ANSWER, id=FrameId("car", "left", "s1", 7), data=bytes(HEIGHT * WIDTH))
    with grpc_server(lambda *_: pack(pack_result(foreign))) as address:
        answer = outcome(reach("grpc", address))
    assert isinstance(answer, ResultMessage)
    assert answer.status is Status.FAILED
    assert "car/left/s1/7" in answer.reason


@pytest.mark.parametrize("name", ["grpc", "oip-rest"])
def test_where_nobody_listens_the_address_is_told(name: str, reach: Open) -> None:
    """It is what the user has to look at."""
    transport = reach(name, "127.0.0.1:1")
    await_problem(transport, "127.0.0.1:1")
    with pytest.raises(NoWorkerError, match=r"127\.0\.0\.1:1: it cannot be reached"):
        transport.wait_for_card(0.0)


def test_a_host_is_a_host_whatever_its_name(reach: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To gRPC alone `unix:80` is the file called 80: frames would go to whoever made one where the vehicle starts."""
    monkeypatch.chdir(tmp_path)
    with grpc_server(lambda *_: pack(b""), at="unix:80"):
        transport = reach("grpc", "unix:80")
        await_problem(transport, "unix:80")
        with pytest.raises(NoWorkerError, match=r"unix:80: .*(cannot be reached|unavailable)"):
            transport.wait_for_card(0.0)


def test_the_door_of_grpc_is_not_taken_for_that_of_http(reach: Open) -> None:
    """Both ports stand side by side in every command; its first bytes would tell a user nothing."""
    with grpc_server(lambda *_: b"") as address:
        transport = reach("oip-rest", address)
        await_problem(transport, address)
        with pytest.raises(NoWorkerError, match="the address of its HTTP door"):
            transport.wait_for_card(0.0)


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_a_closed_line_says_so_to_whoever_is_just_about_to_ask(kind: str) -> None:
    """A vehicle that leaves while a thread of it turns to a worker must not end with that thread's traceback."""
    where, security = Endpoint("127.0.0.1", 1), Security()
    line: Line = (
        GrpcChannel(where, SkylaneAdapter(), security, "car")
        if kind == "grpc"
        else HttpChannel(where, TfServingRestAdapter("tiny"), security, "car", most_calls=1)
    )
    line.close()
    with pytest.raises(ChannelError, match="closed"):
        next(iter(line.statuses(threading.Event())))
    with pytest.raises(ChannelError, match="closed"):
        line.echo(b"")
    line.probe(b"", lambda *_: pytest.fail("nobody was there to echo it"))
