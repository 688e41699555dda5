"""Calls of a gRPC server's method: what its own library says of them at the other end, and what a broken one makes of it."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hpack import Decoder

from edge.transports.grpc_method import (
    Answer,
    BrokenError,
    CallError,
    ClosedError,
    GrpcMethod,
    LateError,
    RefusedError,
    TooLargeError,
)
from edge.transports.security import Security
from shared.authority import Authority
from shared.endpoint import Endpoint
from tests.http2_peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_TABLE,
    HEADERS,
    OK,
    RESET,
    WAIT_S,
    Peer,
    peer,
)

grpc: Any = import_module("grpc")

Act = Callable[[bytes, Any], bytes]
EVERY_BYTE = bytes(range(256))


@contextmanager
def served(act: Act, *, at: Endpoint | None = None, certificate: Path | None = None) -> Iterator[tuple[Endpoint, Any]]:
    """A server of gRPC's own library that answers every method by `act`; with its address."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is Any here.
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(act)

    with ThreadPoolExecutor(8) as threads:
        options = {"grpc.max_receive_message_length": -1, "grpc.max_metadata_size": 1 << 16, "grpc.so_reuseport": 0}
        server = grpc.server(threads, options=tuple(options.items()))
        server.add_generic_rpc_handlers((Handler(),))
        where = str(at or "127.0.0.1:0")
        if certificate is None:
            port = server.add_insecure_port(where)
        else:
            pair = (certificate.with_suffix(".key").read_bytes(), certificate.read_bytes())
            port = server.add_secure_port(where, grpc.ssl_server_credentials([pair]))
        server.start()
        try:
            yield Endpoint("127.0.0.1", port), server
        finally:
            server.stop(0).wait()


@contextmanager
def method(address: Endpoint, **more: Any) -> Iterator[GrpcMethod]:
    """One that is closed in the end."""
    with closing(GrpcMethod(address, "/a.B/C", **{"most_bytes": 1 << 26, **more})) as one:
        yield one


@contextmanager
def full_server() -> Iterator[tuple[str, int]]:
    """An address at which nobody refuses a connection, nor takes one."""
    with ExitStack() as stack:
        where = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0)).getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(where)
        yield where


def call(address: Endpoint, *parts: bytes, **more: Any) -> Answer:
    """A single call."""
    with method(address, **more) as one:
        return one.call(parts or (b"call",), WAIT_S)


def test_megabytes_go_there_and_back_as_they_are() -> None:
    """A mask is bit-exact or worth nothing; an empty message is one as well."""
    picture: list[bytes | memoryview] = [EVERY_BYTE * 9000, memoryview(EVERY_BYTE * 20_000), b"", b"end"]
    with served(lambda message, _: message[::-1]) as (address, _), method(address) as one:
        messages: list[list[bytes | memoryview]] = [picture, [b""], [b"small"], picture]
        for parts in messages:
            whole = b"".join(parts)
            answer = one.call(parts, WAIT_S)
            assert bytes(answer.message) == whole[::-1]


def test_what_is_told_beside_a_message_comes_with_it_both_ways() -> None:
    """Text as it is, and bytes of a field whose name says so."""
    heard: dict[str, Any] = {}

    def act(message: bytes, context: Any) -> bytes:
        heard.update(context.invocation_metadata())
        context.send_initial_metadata((("first", "one"),))
        context.set_trailing_metadata((("last", "two"), ("own-bin", EVERY_BYTE)))
        return message

    with served(act) as (address, _), method(address, headers={"skylane-vehicle": "car"}) as one:
        answer = one.call((b"",), WAIT_S, (("frame-bin", EVERY_BYTE), ("long", "x" * 30_000)))
    assert (heard["skylane-vehicle"], heard["frame-bin"], heard["long"]) == ("car", EVERY_BYTE, "x" * 30_000)
    assert (answer.metadata["first"], answer.metadata["last"], answer.metadata["own-bin"]) == ("one", "two", EVERY_BYTE)


def test_the_server_is_told_how_long_it_has() -> None:
    """It need not infer what nobody waits for."""
    with served(lambda _, context: str(context.time_remaining()).encode()) as (address, _), method(address) as one:
        assert 0 < float(bytes(one.call((b"",), 3600.0).message)) <= 3600
        assert float(bytes(one.call((b"",), 1e9).message)) > 3600  # Longer than it can be told.


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_no_is_told_with_its_code_and_words(code: Any) -> None:
    """Whatever letters they have."""

    def act(_: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("skylane-refusal", "stopping"),))
        context.abort(code, "100 % größer\n")
        raise AssertionError

    with served(act) as (address, _), pytest.raises(RefusedError) as raised:
        call(address)
    refused = raised.value
    assert (refused.code, refused.details) == (code.name, "100 % größer\n")
    assert refused.metadata["skylane-refusal"] == "stopping"


def test_connections_are_kept_and_one_call_is_on_each_at_a_time() -> None:
    """Making one takes as long as a small frame's way; two calls on one would wait for each other."""
    together = threading.Barrier(3)

    def act(message: bytes, context: Any) -> bytes:
        if message == b"together":
            together.wait(WAIT_S)
        return str(context.peer()).encode()

    with served(act) as (address, _), method(address) as one, ThreadPoolExecutor(3) as threads:
        alone = {bytes(one.call((b"alone",), WAIT_S).message) for _ in range(4)}
        assert len(alone) == 1
        for _ in range(2):
            calls = [threads.submit(one.call, (b"together",), WAIT_S) for _ in range(3)]
            many = {bytes(each.result(WAIT_S).message) for each in calls}
            assert len(many) == 3
            assert alone < many


def test_an_answer_that_does_not_come_in_time_is_late_and_the_next_one_is_not() -> None:
    """What is still to come of the first must not be taken for the second."""
    gate = threading.Event()

    def act(message: bytes, _: Any) -> bytes:
        if message == b"slow":
            gate.wait(WAIT_S)
        return message

    with served(act) as (address, _), method(address) as one:
        with pytest.raises((LateError, RefusedError)) as raised:
            one.call((b"slow",), 0.3)
        assert getattr(raised.value, "code", "DEADLINE_EXCEEDED") == "DEADLINE_EXCEEDED"
        assert bytes(one.call((b"quick",), WAIT_S).message) == b"quick"
        gate.set()


def test_a_server_that_ends_is_not_held_up_by_a_connection_that_waits() -> None:
    """It says farewell and asks for a sign of life; then nobody has got the next call, and the one after it is served."""
    with method(Endpoint("127.0.0.1", 1)) as one, pytest.raises(BrokenError) as raised:
        one.call((b"",), WAIT_S)
    assert raised.value.is_unsent
    with served(lambda message, _: message) as (address, server), method(address) as one:
        one.call((b"",), WAIT_S)
        assert server.stop(10 * WAIT_S).wait(WAIT_S)
        with pytest.raises(BrokenError) as raised:
            one.call((b"",), WAIT_S)
        assert raised.value.is_unsent
        with served(lambda message, _: message, at=address):
            assert bytes(one.call((b"again",), WAIT_S).message) == b"again"


def test_closing_ends_the_calls_under_way() -> None:
    """A vehicle that leaves does not wait for its last answers, and makes no more calls."""
    begun, gate = threading.Event(), threading.Event()

    def act(message: bytes, _: Any) -> bytes:
        begun.set()
        gate.wait(WAIT_S)
        return message

    with served(act) as (address, _), ThreadPoolExecutor(1) as threads:
        one = GrpcMethod(address, "/a.B/C", most_bytes=9)
        waiting = threads.submit(one.call, (b"call",), WAIT_S)
        assert begun.wait(WAIT_S)
        one.close()
        with pytest.raises(ClosedError):
            waiting.result(WAIT_S)
        with pytest.raises(ClosedError):
            one.call((b"call",), WAIT_S)
        gate.set()
    assert "grpc-idle" not in {thread.name for thread in threading.enumerate()}


def test_tls_is_spoken_with_whom_the_authority_vouches_for(tmp_path: Path) -> None:
    """With nobody else, and nobody else gets a byte of a picture."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    certificate = ours.broker(["127.0.0.1"], days=1).file
    with served(lambda message, _: message, certificate=certificate) as (address, _):
        for authority, vouches in ((ours, True), (other, False)):
            context = Security(authority.certificate_file.read_bytes()).context(address)
            assert context is not None
            context.set_alpn_protocols(["h2"])
            with method(address, context=context) as one:
                if vouches:
                    for _ in range(3):
                        assert bytes(one.call((EVERY_BYTE * 9000,), WAIT_S).message) == EVERY_BYTE * 9000
                else:
                    with pytest.raises(BrokenError, match="certificate") as raised:
                        one.call((b"",), WAIT_S)
                    assert raised.value.is_unsent
        with pytest.raises(BrokenError) as raised:
            call(address)
        assert raised.value.is_unsent


def test_a_host_that_cannot_be_one_is_not_reached() -> None:
    """Its label is longer than any name's may be."""
    with pytest.raises(BrokenError, match="no host"):
        call(Endpoint("a" * 64, 80))


def test_an_answer_is_taken_up_to_its_bound() -> None:
    """And no memory is taken for a larger one."""
    with served(lambda message, _: message) as (address, _):
        assert len(call(address, bytes(100), most_bytes=100).message) == 100
        with pytest.raises(TooLargeError, match="101 bytes, and 100"):
            call(address, bytes(101), most_bytes=100)


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ([(":status", "503")], b"", "UNAVAILABLE"),
        ([(":status", "404")], b"", "UNIMPLEMENTED"),
        ([(":status", "301")], b"", "UNKNOWN"),
        ([(":status", "103")], b"", "UNKNOWN"),
        ([], b"", "UNKNOWN"),
        ([(":status", "200"), ("content-type", "text/html")], b"<html>", "UNKNOWN"),
        ([(":status", "200")], b"", "UNKNOWN"),
        ([*OK], b"", "UNKNOWN"),
        ([*OK, ("grpc-status", "-1")], b"", "UNKNOWN"),
        ([*OK, ("grpc-status", "17")], b"", "UNKNOWN"),
        ([*OK, ("grpc-status", "²")], b"", "UNKNOWN"),
        ([*OK, ("grpc-status", "9" * 5000)], b"", "UNKNOWN"),
        ([*OK, ("grpc-status", "0")], b"", "INTERNAL"),
        ([*OK, ("grpc-status", "0")], b"\x00\x00\x00\x00\x02a", "INTERNAL"),
        ([*OK, ("grpc-status", "0")], b"\x00\x00", "INTERNAL"),
        ([*OK, ("grpc-status", "0")], b"\x01\x00\x00\x00\x01a", "INTERNAL"),
        ([*OK, ("grpc-status", "0")], b"\x00\x00\x00\x00\x01ab", "INTERNAL"),
    ],
)
def test_an_answer_that_is_none_is_told_so(fields: list[tuple[str, str]], body: bytes, code: str) -> None:
    """A proxy's page, half a message, two of them, a number that is none."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        server.call()
        server.send(HEADERS, END_HEADERS | (0 if body else END_STREAM), 1, server.block(*fields))
        if body:
            server.send(DATA, END_STREAM, 1, body)
        server.until_end()

    with peer(script) as address, pytest.raises(RefusedError) as raised:
        call(address)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("number", "code"), [(8, "CANCELLED"), (11, "RESOURCE_EXHAUSTED"), (12, "PERMISSION_DENIED"), (2, "INTERNAL")]
)
def test_a_call_that_is_reset_is_refused_as_grpc_has_it(number: int, code: str) -> None:
    """One call has ended, and not the worker."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        server.call()
        server.send(RESET, 0, 1, number.to_bytes(4, "big"))
        server.until_end()

    with peer(script) as address, pytest.raises(RefusedError) as raised:
        call(address)
    assert raised.value.code == code


def test_a_server_that_wants_no_table_is_told_that_there_is_none() -> None:
    """HPACK, RFC 7541, 4.2: otherwise it may take every call for a fault."""
    heard: list[bytes] = []

    def script(server: Peer) -> None:
        server.greet({HEADER_TABLE: 0})
        server.hear_greeting()
        while not heard:
            frame = server.next()
            if frame.kind == HEADERS:
                heard.append(frame.payload)
        server.until_end()

    with peer(script) as address, pytest.raises(LateError), method(address) as one:
        one.call((b"",), 0.3)
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    assert {str(name): str(value) for name, value in decoder.decode(heard[0])}[":path"] == "/a.B/C"


def test_closing_ends_a_call_that_still_connects() -> None:
    """A server that takes the connection and says nothing, under TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        one = GrpcMethod(
            Endpoint("127.0.0.1", server.getsockname()[1]),
            "/a.B/C",
            most_bytes=9,
            context=ssl.create_default_context(),
        )
        waiting = threads.submit(one.call, (b"call",), 10 * WAIT_S)
        with server.accept()[0]:
            one.close()
            with pytest.raises(ClosedError):
                waiting.result(WAIT_S)


def test_an_address_that_is_silent_leaves_the_others_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a dead address ahead of the live one, such as of IPv6."""
    monkeypatch.setattr("edge.transports.grpc_method._CONNECT_S", 1.0)
    with served(lambda message, _: message) as (address, _), full_server() as silent:
        (found,) = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*found[:4], silent), found])
        assert bytes(call(address, b"there").message) == b"there"


def test_a_field_that_ought_to_be_bytes_and_is_not_is_empty() -> None:
    """A mask that comes beside an answer is refused where it is read."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        server.call()
        server.send(HEADERS, END_HEADERS, 1, server.block(*OK, ("own-bin", "a"), ("grpc-status", "0")))
        server.send(DATA, END_STREAM, 1, bytes(5))
        server.until_end()

    with peer(script) as address:
        assert call(address).metadata["own-bin"] == b""


@pytest.mark.parametrize(("is_sent", "room"), [(True, 1 << 30), (False, 0)])
def test_a_connection_that_breaks_tells_whether_all_was_sent(*, is_sent: bool, room: int) -> None:
    """Of half a frame nobody can make anything: it may go to another worker at once."""

    def script(server: Peer) -> None:
        server.greet({4: room})
        server.hear_greeting()
        if is_sent:
            server.call()

    with peer(script) as address, pytest.raises(CallError) as raised:
        call(address, bytes(1 << 20))
    assert isinstance(raised.value, BrokenError)
    assert raised.value.is_unsent is not is_sent
