"""The gRPC server and callers that say what no library would."""

import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from cloud.gateway import http2_connection
from shared.authority import Authority
from tests.cloud.gateway.echo_service import CALLS, ECHO, HELD, MOST_BYTES, UNTOLD, ended, is_served, serving
from tests.cloud.gateway.grpc_rig import NUMBER, WAIT_S, Served, announced, caller
from tests.http2_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOING,
    HEADER_TABLE,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    RESET,
    SETTINGS,
    WINDOW,
)

REFUSED, CANCEL = 7, 8  # Codes.
LARGE_WINDOWS = {INITIAL_WINDOW: (1 << 31) - 1}


@pytest.fixture(name="one")
def _one() -> Iterator[Served]:
    with serving() as (server, _):
        yield server


def test_a_call_is_answered_whatever_its_frames_look_like(one: Served) -> None:
    """Padding, priorities, a header list and a message in pieces, an end of its own, words between them."""
    with caller(one.server) as end:
        block = end.block(
            (":method", "POST"), (":path", ECHO), ("content-type", "application/grpc+proto"), ("x-long", "a" * 99)
        )
        end.send(HEADERS, PADDED | PRIORITY, 1, bytes([3, *bytes(5)]) + block[:20] + bytes(3))
        end.send(CONTINUATION, 0, 1, block[20:50])
        end.send(CONTINUATION, END_HEADERS, 1, block[50:])
        message = announced(b"in pieces")
        end.send(DATA, PADDED, 1, bytes([2]) + message[:3] + bytes(2))
        end.send(PING, 0, 0, b"12345678")
        end.send(DATA, 0, 1)
        end.send(99, 255, 1, b"of a kind that nobody knows")
        end.send(DATA, 0, 1, message[3:])
        end.send(DATA, END_STREAM, 1)
        assert end.until(PING, 0).payload == b"12345678"
        assert end.read(end.until(HEADERS, 1))["content-type"] == "application/grpc"
        assert end.until(DATA, 1).payload == message
        assert end.told(1) == {"grpc-status": "0"}


def test_calls_of_a_connection_do_not_wait_for_each_other() -> None:
    """One that takes long must not hold up the next."""
    with serving() as (one, service), caller(one.server) as end:
        end.ask(1, HELD, b"slow")
        service.begun.get(timeout=WAIT_S)
        end.ask(3, ECHO, b"quick")
        assert end.told(3)["grpc-status"] == "0"
        service.gate.set()
        assert end.told(1)["grpc-status"] == "0"


@pytest.mark.parametrize("window", [1, 7, 100])
def test_an_answer_goes_out_as_its_caller_lets_it(one: Served, window: int) -> None:
    """Byte by byte, if need be."""
    with caller(one.server, {INITIAL_WINDOW: window}, window=0) as end:
        end.ask(1, ECHO, b"a" * 200)
        assert end.read(end.until(HEADERS, 1))[":status"] == "200"
        body = b""
        while len(body) < 205:
            body += end.until(DATA, 1).payload
            end.send(WINDOW, 0, 1, NUMBER.pack(window))
        assert body == announced(b"a" * 200)
        assert end.told(1)["grpc-status"] == "0"


def test_a_window_may_be_taken_back(one: Served) -> None:
    """It is less than nothing then, until the caller has let out more."""
    with caller(one.server, {INITIAL_WINDOW: 10}) as end:
        end.ask(1, ECHO, b"a" * 100)
        assert len(end.until(DATA, 1).payload) == 10
        end.send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0))
        end.send(WINDOW, 0, 1, NUMBER.pack(10))
        end.send(WINDOW, 0, 1, NUMBER.pack(7))
        assert len(end.until(DATA, 1).payload) == 7


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({":method": "GET"}, {":status": "405"}),
        ({"content-type": "text/plain"}, {":status": "415"}),
        ({":path": "/test.Service/None"}, {":status": "200", "grpc-status": "12"}),
        ({"grpc-timeout": "soon"}, {":status": "200", "grpc-status": "3"}),
        ({"grpc-timeout": "123456789S"}, {":status": "200", "grpc-status": "3"}),
        ({"grpc-timeout": "0n"}, {":status": "200", "grpc-status": "4"}),
    ],
)
def test_a_call_that_is_none_is_refused_at_its_head(
    one: Served, fields: dict[str, str], status: dict[str, str]
) -> None:
    """Its message is not waited for, and the connection goes on."""
    head = {":method": "POST", ":path": ECHO, "content-type": "application/grpc"} | fields
    with caller(one.server) as end:
        end.send(HEADERS, END_HEADERS, 1, end.block(*head.items()))
        assert status.items() <= end.told(1).items()
        assert end.until(RESET, 1).payload == bytes(4)
        end.send(DATA, END_STREAM, 1, announced(b"too late"))
        end.ask(3, ECHO, b"next")
        assert end.told(3)["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("data", "flags", "status"),
    [
        (announced(bytes(MOST_BYTES + 1))[: 1 << 14], 0, "8"),
        (announced(b"folded", is_folded=1), 0, "12"),
        (b"\x02\x00\x00\x00\x00", 0, "3"),
        (b"", END_STREAM, "3"),
        (announced(b"whole")[:-1], END_STREAM, "3"),
    ],
)
def test_a_message_that_is_none_is_refused(one: Served, data: bytes, flags: int, status: str) -> None:
    """As soon as that can be known."""
    with caller(one.server) as end:
        end.begin(1, ECHO)
        end.send(DATA, flags, 1, data)
        assert end.told(1)["grpc-status"] == status
        end.ask(3, ECHO, b"next")
        assert end.told(3)["grpc-status"] == "0"


def test_a_refusal_is_readable_whatever_it_says(one: Served) -> None:
    """A header field holds ASCII, and a message of ours quotes its caller."""
    with caller(one.server) as end:
        end.begin(1, "/é%/\n")
        assert "/%C3%A9%25/%0A" in end.told(1)["grpc-message"]


def test_a_deadline_ends_a_call_with_its_code() -> None:
    """And what it holds is let go."""
    with serving() as (one, service), caller(one.server) as end:
        over = threading.Event()
        end.ask(1, HELD, b"late", ("grpc-timeout", "300m"))
        service.begun.get(timeout=WAIT_S).when_over(over.set)
        assert end.told(1)["grpc-status"] == "4"
        assert over.wait(WAIT_S)


def test_more_calls_than_may_be_are_refused() -> None:
    """Of one connection before they are looked at, which their caller may try elsewhere; of all by a code."""
    with serving() as (one, service), caller(one.server) as end:
        for number in range(CALLS):
            end.ask(1 + 2 * number, HELD, b"")
        end.ask(99, HELD, b"")
        assert end.until(RESET, 99).payload == NUMBER.pack(REFUSED)
        with caller(one.server) as other:
            for _ in range(CALLS):
                service.begun.get(timeout=WAIT_S)
            other.ask(1, ECHO, b"")
            assert other.told(1)["grpc-status"] == "8"
        service.gate.set()
        assert end.told(1)["grpc-status"] == "0"


@pytest.mark.parametrize("lets_out", [0, 1 << 20], ids=["window", "network"])
def test_answers_that_are_not_taken_shut_nobody_out(lets_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps a thread and a place: a newcomer that finds none has the oldest leave."""
    monkeypatch.setattr(http2_connection, "_LEAST_NS", 0)
    with serving() as (one, _), caller(one.server, {INITIAL_WINDOW: lets_out}) as greedy, caller(one.server) as other:
        for number in range(CALLS):
            greedy.ask(1 + 2 * number, ECHO, bytes(MOST_BYTES))
        for stream in itertools.count(1, 2):
            other.ask(stream, ECHO, b"other")
            if other.is_answered(stream):
                break


def test_what_is_announced_and_does_not_come_shuts_nobody_out() -> None:
    """Five bytes can announce as many as may be held."""
    with serving() as (one, _), caller(one.server) as greedy:
        for number in range(CALLS // 2):
            greedy.begin(1 + 2 * number, ECHO)
            greedy.send(DATA, 0, 1 + 2 * number, announced(bytes(MOST_BYTES))[:5])
        greedy.send(PING, 0, 0, bytes(8))
        greedy.until(PING, 0)
        assert is_served(one)


def test_a_stream_of_calls_may_last_though_it_brings_more_than_one_message_may_hold(one: Served) -> None:
    """Its caller is let send more as its messages are taken, padding and all."""
    with grpc.insecure_channel(f"127.0.0.1:{one.server.port}") as channel:
        talk: Any = channel.stream_stream("/test.Service/Talk")
        sent = [bytes([number]) * (MOST_BYTES // 4) for number in range(20)]
        assert list(talk(iter(sent), timeout=WAIT_S)) == sent


def test_padding_is_let_in_anew(one: Served) -> None:
    """A caller that pads would run dry."""
    with caller(one.server) as end:
        end.begin(1, "/test.Service/Talk")
        for _ in range(MOST_BYTES // 256 + 9):
            end.send(DATA, PADDED, 1, bytes([255]) + bytes(255))
            assert end.until(WINDOW, 1).payload == NUMBER.pack(256)


def test_callers_of_one_connection_at_its_limit_are_all_answered() -> None:
    """Who has an answer may call at once: nothing of the last call may be in the way, nor the others' answers."""
    with serving(max_calls=3) as (one, _), grpc.insecure_channel(f"127.0.0.1:{one.server.port}") as channel:
        ask: Any = channel.unary_unary(ECHO)

        def call_on_and_on(_: int) -> bool:
            return all(ask(bytes(30_000), timeout=WAIT_S) == bytes(30_000) for _ in range(100))

        with ThreadPoolExecutor(3) as threads:
            assert all(threads.map(call_on_and_on, range(3)))


def test_a_small_answer_passes_a_large_one_on_its_way() -> None:
    """Of a caller that reads slowly: a minute's transfer must not hold up the answers behind it, nor a ping's."""
    size = 48 << 20
    with serving(max_message_bytes=size) as (one, _), caller(one.server, LARGE_WINDOWS) as end:
        end.ask(1, ECHO, bytes(size))
        end.until(HEADERS, 1)
        end.ask(3, ECHO, b"small")
        assert end.told(3)["grpc-status"] == "0"  # Found before the large one's end, which it would have passed over.
        assert end.told(1)["grpc-status"] == "0"


def test_what_was_to_go_out_of_a_call_that_ends_goes_out_of_others() -> None:
    """Else each that is given up behind a large answer takes something of what all may send."""
    size, small = 24 << 20, 1 << 20
    window = size + CALLS * small
    with (
        serving(max_message_bytes=size) as (one, _),
        caller(one.server, LARGE_WINDOWS, window=window - 65_535) as end,
    ):
        end.ask(1, ECHO, bytes(size - 5))
        end.until(HEADERS, 1)
        for stream in range(3, CALLS, 2):
            end.ask(stream, ECHO, bytes(small - 5))
            end.send(RESET, 0, stream, NUMBER.pack(CANCEL))
        while (frame := end.next()).kind != HEADERS or frame.stream != 1:
            window -= len(frame.payload) if frame.kind == DATA else 0
        end.ask(99, ECHO, bytes(window - 5))
        while window:
            frame = end.next()
            window -= len(frame.payload) if frame.kind == DATA else 0


def test_windows_that_change_while_answers_go_out_are_kept_to() -> None:
    """A library widens and narrows them as it measures, and hangs up on who is ahead of its own acknowledgement."""
    size = 24 << 20
    options = [("grpc.max_receive_message_length", -1)]
    with (
        serving(max_message_bytes=size) as (one, _),
        grpc.insecure_channel(f"127.0.0.1:{one.server.port}", options=options) as channel,
    ):
        ask: Any = channel.unary_unary(ECHO)
        for _ in range(3):
            asked = [ask.future(bytes(size), timeout=WAIT_S) for _ in range(2)]
            assert all(call.result() == bytes(size) for call in asked)


def test_a_deadline_ends_a_call_whose_answer_is_not_let_out() -> None:
    """It keeps a thread."""
    with serving() as (one, _), caller(one.server, {INITIAL_WINDOW: 0}) as end:
        end.ask(1, ECHO, b"never", ("grpc-timeout", "200m"))
        assert end.until(RESET, 1).payload == NUMBER.pack(CANCEL)
        assert one.counts.get(timeout=WAIT_S) == "CANCELLED"


def test_a_caller_without_a_table_is_told_that_none_is_filled(one: Served) -> None:
    """HPACK wants it in the next header list, and a strict reader hangs up where it is not there."""
    with caller(one.server, {HEADER_TABLE: 0}) as end:
        end.set_table(0)
        for stream, path in ((1, ECHO), (3, "/no/method"), (5, ECHO)):
            end.ask(stream, path, b"")
            assert end.told(stream)["grpc-status"] == ("12" if stream == 3 else "0")


def test_callers_that_hang_up_while_the_server_closes_end_no_thread() -> None:
    """Two ways to the end of a connection, at the same time."""
    for _ in range(10):
        with serving() as (one, _), ExitStack() as stack:
            ends = [stack.enter_context(caller(one.server)) for _ in range(4)]
            for end in ends:
                end.ask(1, ECHO, b"", ("grpc-timeout", "1m"))
            closing = threading.Thread(target=one.server.close)
            closing.start()
            for end in ends:
                end.connection.close()
            closing.join(WAIT_S)
            assert not closing.is_alive()


def test_a_fault_of_ours_is_told_and_is_internal(one: Served) -> None:
    """To the caller that it is ours, to whoever watches what it was."""
    with caller(one.server) as end:
        end.ask(1, "/test.Service/Broken", b"")
        assert end.told(1)["grpc-status"] == "13"
    assert isinstance(one.faults.get(timeout=WAIT_S), AssertionError)
    assert one.counts.get(timeout=WAIT_S) == "INTERNAL"


def test_a_server_that_closes_answers_what_is_under_way_and_takes_no_more() -> None:
    """And says so, so that its callers go elsewhere."""
    with serving() as (one, service), caller(one.server) as end:
        end.ask(1, HELD, b"last")
        service.begun.get(timeout=WAIT_S)
        closing = threading.Thread(target=one.server.close)
        closing.start()
        assert NUMBER.unpack_from(end.until(GOING, 0).payload)[0] == 1
        end.ask(3, ECHO, b"too late")
        assert end.until(RESET, 3).payload == NUMBER.pack(REFUSED)
        service.gate.set()
        assert end.told(1)["grpc-status"] == "0"
        assert ended(end) == UNTOLD  # Without another word.
        end.connection.close()
        closing.join(WAIT_S)
        assert not closing.is_alive()


def test_answers_of_a_stream_come_one_by_one(one: Served) -> None:
    """Between a first header list and a last one."""
    with grpc.insecure_channel(f"127.0.0.1:{one.server.port}") as channel:
        count: Any = channel.unary_stream("/test.Service/Count")
        assert list(count(b"\x05", timeout=WAIT_S)) == [bytes([number]) for number in range(5)]
        assert list(count(b"\x00", timeout=WAIT_S)) == []


@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_a_library_of_grpcs_gets_back_what_it_sent(one: Served, compression: grpc.Compression) -> None:
    """Folded or not, of no byte and of as many as may be, time after time."""
    with grpc.insecure_channel(f"127.0.0.1:{one.server.port}", compression=compression) as channel:
        ask: Any = channel.unary_unary(ECHO)
        for size in (0, 1, 1 << 14, MOST_BYTES, 5):
            assert ask(bytes(size), timeout=WAIT_S) == bytes(size)


def test_within_tls_large_messages_go_both_ways_at_once(tmp_path: Path) -> None:
    """The library is no two threads' at once, and each way waits for the network without it."""
    authority = Authority(tmp_path)
    file = authority.broker(["127.0.0.1"], 1).file
    secured = {"tls_cert": file, "tls_key": file.with_suffix(".key")}
    credentials = grpc.ssl_channel_credentials(authority.certificate_file.read_bytes())
    with serving(**secured) as (one, _):
        with grpc.secure_channel(f"127.0.0.1:{one.server.port}", credentials) as channel:
            ask: Any = channel.unary_unary(ECHO)
            for _ in range(5):
                asked = [
                    (ask.future(sent, timeout=WAIT_S), sent)
                    for sent in (bytes([number]) * MOST_BYTES for number in range(CALLS // 2))
                ]
                assert all(call.result() == sent for call, sent in asked)
        with socket.create_connection(("127.0.0.1", one.server.port), WAIT_S) as plain:
            plain.sendall(b"no TLS" * 9)
            with suppress(ConnectionError):
                while plain.recv(1 << 16):
                    pass
        context = ssl.create_default_context(cafile=authority.certificate_file)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", one.server.port), WAIT_S) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
        ):
            assert secure.selected_alpn_protocol() == "h2"
