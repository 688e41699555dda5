"""Callers of the gRPC server that break the rules of HTTP/2, and those that go without a word."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from cloud.gateway import http2_server, patience
from tests.cloud.gateway.echo_service import CALLS, ECHO, HELD, UNTOLD, ended, is_served, serving
from tests.cloud.gateway.grpc_rig import NUMBER, WAIT_S, Caller, Served, caller
from tests.http2_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PADDED,
    PING,
    PROMISE,
    RESET,
    SETTINGS,
    WINDOW,
)

PROTOCOL, FLOW_CONTROL, CANCEL, COMPRESSION, ENOUGH = 1, 3, 8, 9, 11  # Codes.


@pytest.fixture(name="one")
def _one() -> Iterator[Served]:
    with serving() as (server, _):
        yield server


def word(kind: int, stream: int, payload: bytes, flags: int = 0) -> Callable[[Caller], None]:
    """One frame."""
    return lambda end: end.send(kind, flags, stream, payload)


def broken_off(end: Caller) -> None:
    """A header list, and something else before its end."""
    end.send(HEADERS, 0, 1, end.block((":method", "POST")))
    end.send(PING, 0, 0, bytes(8))


def vast_headers(end: Caller) -> None:
    """A header list without end."""
    end.send(HEADERS, 0, 1, b"")
    for _ in range(20):
        end.send(CONTINUATION, 0, 1, bytes(1 << 14))


def bomb(end: Caller) -> None:
    """A header list that is small on the wire alone."""
    first = b"\x40\x01x\x7f\x81\x1e" + bytes(4_000)  # Entered into the table,
    end.send(HEADERS, END_HEADERS, 1, first + b"\xbe" * 16_000)  # and said over and over.


def flood(kind: int, stream: int, payload: bytes) -> Callable[[Caller], None]:
    """The same word, on and on, while the answers are read."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, 0)) + stream.to_bytes(4, "big")
    words = (head + payload) * (patience.MOST_WORDS + 1)

    def say(end: Caller) -> None:
        with suppress(ConnectionError):  # It was hung up on before the last one.
            end.connection.sendall(words)

    return lambda end: threading.Thread(target=say, args=(end,), daemon=True).start()


def resets(end: Caller) -> None:
    """Calls that are begun and given up at once."""
    for stream in range(1, patience.MOST_WORDS + 3, 2):
        end.begin(stream, ECHO)
        end.send(RESET, 0, stream, NUMBER.pack(CANCEL))


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        pytest.param(word(DATA, 1, b""), PROTOCOL, id="data of no call"),
        pytest.param(word(DATA, 0, b""), PROTOCOL, id="data of the connection"),
        pytest.param(word(HEADERS, 2, b"\x82", END_HEADERS), PROTOCOL, id="a server's number"),
        pytest.param(word(HEADERS, 1, b"\xff\xff\xff\xff", END_HEADERS), COMPRESSION, id="no header list"),
        pytest.param(word(HEADERS, 1, b"\x05ab", END_HEADERS | PADDED), PROTOCOL, id="padding"),
        pytest.param(word(CONTINUATION, 1, b""), PROTOCOL, id="goes on"),
        pytest.param(word(RESET, 1, bytes(4)), PROTOCOL, id="no call to reset"),
        pytest.param(word(PING, 0, b"1"), PROTOCOL, id="ping"),
        pytest.param(word(SETTINGS, 0, b"1"), PROTOCOL, id="settings"),
        pytest.param(word(SETTINGS, 0, struct.pack(">HI", 5, 1)), PROTOCOL, id="small frames"),
        pytest.param(word(WINDOW, 0, bytes(4)), PROTOCOL, id="nothing let out"),
        pytest.param(word(WINDOW, 0, NUMBER.pack((1 << 31) - 1)), FLOW_CONTROL, id="window"),
        pytest.param(word(PROMISE, 1, bytes(4)), PROTOCOL, id="promise"),
        pytest.param(word(99, 0, bytes(70_000)), ENOUGH, id="large"),
        pytest.param(broken_off, PROTOCOL, id="broken off"),
        pytest.param(vast_headers, ENOUGH, id="vast headers"),
        pytest.param(bomb, COMPRESSION, id="bomb"),
        pytest.param(flood(PING, 0, bytes(8)), ENOUGH, id="pings"),
        pytest.param(flood(SETTINGS, 0, b""), ENOUGH, id="settings on and on"),
        pytest.param(flood(2, 1, bytes(5)), ENOUGH, id="priorities"),
        pytest.param(resets, ENOUGH, id="rapid resets"),
    ],
)
def test_who_breaks_the_rules_is_told_and_hung_up_on(
    one: Served, break_it: Callable[[Caller], None], code: int
) -> None:
    """And nobody else hears of it. Who is still sending may be hung up on before the word is there."""
    with caller(one.server) as end:
        with suppress(ConnectionError):
            break_it(end)
        assert ended(end) in ({code, UNTOLD} if code in {ENOUGH, COMPRESSION} else {code})
    assert is_served(one)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)]
)
def test_who_speaks_something_else_is_hung_up_on(one: Served, said: bytes) -> None:
    """A browser, a balancer that looks whether the port is open, HTTP/2 that does not begin with its settings."""
    with socket.create_connection(("127.0.0.1", one.server.port), WAIT_S) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass
    assert is_served(one)


def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has a thread, of which there is a bounded number."""
    monkeypatch.setattr(http2_server, "_HANDSHAKE_S", 0.1)
    with serving(answer_s=0.1) as (one, _), socket.create_connection(("127.0.0.1", one.server.port), WAIT_S) as silent:
        assert silent.recv(1 << 16)  # The server's greeting,
        while silent.recv(1 << 16):  # and its end.
            pass


def test_of_too_many_connections_the_oldest_of_a_host_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer is always let in."""
    monkeypatch.setattr(http2_server, "MOST_CONNECTIONS", 2)
    with serving() as (one, _), caller(one.server) as first, caller(one.server) as second, caller(one.server) as third:
        assert ended(first) == UNTOLD
        for end in (second, third):
            end.ask(1, ECHO, b"")
            assert end.told(1)["grpc-status"] == "0"


def test_who_hangs_up_leaves_nothing_behind() -> None:
    """Whatever was under way: a place that is never given back is missed after weeks."""
    with serving() as (one, service):
        for _ in range(3 * CALLS):
            with caller(one.server) as end:
                over = threading.Event()
                end.begin(1, ECHO)
                end.ask(3, HELD, b"")
                service.begun.get(timeout=WAIT_S).when_over(over.set)
                end.begin(5, ECHO)
                end.connection.close()
                assert over.wait(WAIT_S)
                service.gate.set()
        assert is_served(one)
