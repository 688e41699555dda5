"""HTTP/2 with one call at a time: whatever the other end says, the call comes whole or the connection is given up."""

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.transports.http2 import Connection
from edge.transports.wire import Wire
from shared.endpoint import Endpoint
from shared.http2 import MAX_HEADERS, Http2Error
from tests.http2_peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOING,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST_FRAME,
    OK,
    PADDED,
    PING,
    PRIORITY,
    PROMISE,
    RESET,
    SETTINGS,
    WAIT_S,
    WINDOW,
    Frame,
    Peer,
    peer,
)

BLOCK: bytes = Encoder().encode([(":method", "POST"), (":path", "/a/b")])
_NUMBER = struct.Struct(">I")


class Bytes:
    """A body that takes so many bytes, a few at a time."""

    def __init__(self, most: int = 1 << 20) -> None:
        self.taken = b""
        self.begun: dict[str, str] = {}
        self._most = most
        self._room = bytearray(7)

    def begin(self, fields: Mapping[str, str]) -> None:
        """See Body."""
        self.begun = dict(fields)

    def room(self) -> memoryview:
        """See Body."""
        if len(self.taken) == self._most:
            raise OverflowError
        return memoryview(self._room)[: self._most - len(self.taken)]

    def took(self, count: int) -> None:
        """See Body."""
        self.taken += self._room[:count]


@contextmanager
def connection(address: Endpoint, within_s: float = WAIT_S) -> Iterator[Connection]:
    """One that is closed in the end."""
    wire = Wire(time.monotonic() + within_s)
    try:
        wire.connect(address, None)
        yield Connection(wire)
    finally:
        wire.close()


def ask(address: Endpoint, body: Bytes | None = None, parts: tuple[bytes, ...] = (b"call",)) -> dict[str, str]:
    """Make one call; the answer's fields."""
    with connection(address) as caller:
        return caller.exchange(BLOCK, parts, body or Bytes())


def forever(act: Callable[[], object]) -> NoReturn:
    """Until it raises something."""
    while True:
        act()


def called(then: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """A script that says this once it was called, and hears its caller out."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        assert server.call() == b"call"
        then(server)
        server.until_end()

    return script


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=5).filter(any),
    st.integers(0, 300),
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
@settings(max_examples=40)
def test_a_call_comes_whole_through_whatever_window_it_is_let(parts: list[bytes], first: int, steps: list[int]) -> None:
    """What is sent beyond a window ends the connection; what is not sent, though let, would be waited for for ever."""
    heard = b""

    def script(server: Peer) -> None:
        nonlocal heard
        server.greet({INITIAL_WINDOW: first}, window=0)
        server.hear_greeting()
        window, step, is_over = first, 0, False
        while not is_over:
            if window == 0:
                server.send(WINDOW, 0, 1, _NUMBER.pack(steps[step % len(steps)]))
                window, step = window + steps[step % len(steps)], step + 1
            frame = server.next()
            if frame.kind == DATA:
                window -= len(frame.payload)
                assert window >= 0
                heard += frame.payload
                is_over = bool(frame.flags & END_STREAM)
        server.answer(1, b"")
        server.until_end()

    with peer(script) as address:
        assert ask(address, parts=tuple(parts))["grpc-status"] == "0"
    assert heard == b"".join(parts)


def test_a_window_that_is_taken_back_is_paid_off_first() -> None:
    """RFC 9113, 6.9.2: it may be below nothing."""
    parts = (bytes(range(100)), bytes(range(100)))

    def script(server: Peer) -> None:
        server.greet({INITIAL_WINDOW: 100})
        server.hear_greeting()
        body = b""
        while len(body) < 100:
            frame = server.next()
            body += frame.payload if frame.kind == DATA else b""
        server.send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 10))  # 90 too many by now.
        server.send(WINDOW, 0, 1, _NUMBER.pack(95))
        frame = server.next()
        while frame.kind != DATA:
            frame = server.next()
        assert len(frame.payload) == 5
        server.send(WINDOW, 0, 1, _NUMBER.pack(95))
        assert body + frame.payload + server.call() == b"".join(parts)
        server.answer(1, b"")
        server.until_end()

    with peer(script) as address:
        assert ask(address, parts=parts)["grpc-status"] == "0"


def test_frames_are_as_large_as_the_other_end_takes_them() -> None:
    """A picture in one frame is read in one piece."""
    picture = bytes(1 << 20)
    sizes: list[int] = []

    def script(server: Peer) -> None:
        server.greet({INITIAL_WINDOW: 1 << 30, LARGEST_FRAME: 1 << 19})
        server.hear_greeting()
        while sum(sizes) < len(picture):
            frame = server.next()
            if frame.kind == DATA:
                sizes.append(len(frame.payload))
        server.answer(1, b"")
        server.until_end()

    with peer(script) as address:
        ask(address, parts=(picture,))
    assert max(sizes) == 1 << 19


def test_an_answer_is_read_however_it_is_cut_up() -> None:
    """Padding, priorities and continuations are any server's right, and kinds of frames that nobody knows."""

    def say(server: Peer) -> None:
        block = server.block(*OK, ("x-long", "y" * 300))
        server.send(99, 0, 1, b"of another year")
        server.send(99, 0, 1, bytes(3 * MAX_HEADERS))
        server.send(HEADERS, END_HEADERS, 1, server.block((":status", "103"), ("link", "y")))
        server.send(HEADERS, PADDED | PRIORITY, 1, b"\x03" + bytes(5) + block[:10] + bytes(3))
        server.send(CONTINUATION, 0, 1, block[10:11])
        server.send(CONTINUATION, END_HEADERS, 1, block[11:])
        server.send(DATA, PADDED, 1, b"\x02" + b"first and " + bytes(2))
        server.send(DATA, 0, 1)
        server.send(DATA, PADDED, 1)
        server.send(DATA, END_STREAM, 1, b"last")

    body = Bytes()
    with peer(called(say)) as address:
        assert ask(address, body) == {**dict(OK), "x-long": "y" * 300}
    assert body.taken == b"first and last"
    assert body.begun["x-long"] == "y" * 300


def test_who_is_asked_for_a_sign_of_life_gives_it() -> None:
    """A server that gets none takes the connection for dead."""
    heard: list[Frame] = []

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        server.call()
        server.send(PING, 0, 0, b"12345678")
        while not heard or heard[-1].kind != PING:
            heard.append(server.next())
        server.answer(1, b"")
        server.until_end()

    with peer(script) as address:
        ask(address)
    assert heard[-1] == Frame(PING, ACK, 0, b"12345678")


def test_a_connection_takes_one_call_after_the_other() -> None:
    """Each with a number of its own; between them the other end may speak."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        for stream in (1, 3, 5):
            server.send(WINDOW, 0, max(1, stream - 2), _NUMBER.pack(9))
            server.send(PING, 0, 0, bytes(8))
            server.call()
            server.answer(stream, bytes((stream,)))
        server.until_end()

    bodies = [Bytes() for _ in range(3)]
    with peer(script) as address, connection(address) as caller:
        for body in bodies:
            caller.hear()
            assert not caller.is_spent
            caller.exchange(BLOCK, (b"call",), body)
    assert [body.taken for body in bodies] == [b"\x01", b"\x03", b"\x05"]


def test_a_place_in_the_table_says_what_stands_there_now() -> None:
    """A header list of places alone is remembered, and must be forgotten once another field takes one of them."""
    first, again, second = b"\x40\x01x\x011", b"\xbe", b"\x40\x01y\x012"  # Entered; the newest; entered before it.

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        for stream, block in zip((1, 3, 5, 7, 9, 11), (first, again, again, second, again, b"\xbf"), strict=True):
            server.call()
            server.send(HEADERS, END_HEADERS | END_STREAM, stream, block)
        server.until_end()

    with peer(script) as address, connection(address) as caller:
        told = [caller.exchange(BLOCK, (b"call",), Bytes()) for _ in range(6)]
    assert told == [{"x": "1"}, {"x": "1"}, {"x": "1"}, {"y": "2"}, {"y": "2"}, {"x": "1"}]


def test_a_farewell_is_heard_before_the_next_call() -> None:
    """A call that is made all the same would be lost."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        server.call()
        server.answer(1, b"")
        server.send(GOING, 0, 0, bytes(8))
        server.send(PING, 0, 0, bytes(8))
        while server.next().kind != PING:
            pass

    with peer(script) as address, connection(address) as caller:
        caller.exchange(BLOCK, (b"call",), Bytes())
        with pytest.raises(ConnectionError):
            forever(caller.hear)
        assert caller.is_spent


def test_an_answer_ahead_of_the_whole_call_ends_it() -> None:
    """A server refuses a picture before it has come; the rest is sent to nobody, nor the next call after it."""

    def script(server: Peer) -> None:
        server.greet(window=0)
        server.hear_greeting()
        server.send(HEADERS, END_HEADERS | END_STREAM, 1, server.block(*OK, ("grpc-status", "8")))
        server.until_end()

    with peer(script) as address, connection(address) as caller:
        assert caller.exchange(BLOCK, (bytes(1 << 20),), Bytes())["grpc-status"] == "8"
        assert caller.is_spent
        assert not caller.is_sent


def test_an_answer_of_who_hangs_up_is_read_though_the_call_did_not_leave() -> None:
    """A picture that is refused unread: why is told ahead of the hang-up."""

    def script(server: Peer) -> None:
        server.greet({INITIAL_WINDOW: 1 << 30, LARGEST_FRAME: (1 << 24) - 1})
        server.hear_greeting()
        while server.next().kind != HEADERS:
            pass
        server.send(HEADERS, END_HEADERS | END_STREAM, 1, server.block(*OK, ("grpc-status", "8")))

    with peer(script) as address:
        assert ask(address, parts=(bytes(1 << 25),))["grpc-status"] == "8"


def refused_reset(server: Peer) -> None:
    """The words for a call that was not begun."""
    server.send(RESET, 0, 1, _NUMBER.pack(7))


def refused_going(server: Peer) -> None:
    """The same, of every call from this one on."""
    server.send(GOING, 0, 0, bytes(8))


@pytest.mark.parametrize("say", [refused_reset, refused_going])
def test_a_call_that_was_answered_in_part_was_begun(say: Callable[[Peer], None]) -> None:
    """Whatever is said of it then: another worker would infer the frame twice."""

    def then(server: Peer) -> None:
        server.send(HEADERS, END_HEADERS, 1, server.block(*OK))
        say(server)

    with peer(called(then)) as address, pytest.raises(Http2Error) as raised:
        ask(address)
    assert not raised.value.is_refused


@pytest.mark.parametrize("say", [refused_reset, refused_going])
def test_a_call_that_was_not_begun_is_told_apart(say: Callable[[Peer], None]) -> None:
    """Another worker may have it without anything being done twice."""
    with peer(called(say)) as address, pytest.raises(Http2Error) as raised:
        ask(address)
    assert raised.value.is_refused


_OK_BLOCK: bytes = Encoder().encode(OK)
_BOMB: bytes = Encoder().encode([("x", "y" * 4000)], huffman=False) + b"\xbe" * 20  # Again, by its place in the table.
NONSENSE: dict[str, list[tuple[int, int, int, bytes]]] = {
    "data before headers": [(DATA, 0, 1, b"x")],
    "data of another call": [(DATA, 0, 3, b"x")],
    "headers of another call": [(HEADERS, END_HEADERS, 3, _OK_BLOCK)],
    "headers that are none": [(HEADERS, END_HEADERS, 1, b"\xff" * 9)],
    "headers of no text": [(HEADERS, END_HEADERS, 1, b"\x00\x01\xff\x01\xff")],
    "headers that unfold": [(HEADERS, END_HEADERS, 1, _BOMB)],
    "headers too long": [(HEADERS, 0, 1, bytes(MAX_HEADERS + 1))],
    "headers without end": [(HEADERS, 0, 1, bytes(1 << 15)), *[(CONTINUATION, 0, 1, bytes(1 << 15))] * 2],
    "header lists without end": [(HEADERS, END_HEADERS, 1, _OK_BLOCK)] * 2,
    "a short ping": [(PING, 0, 0, bytes(7))],
    "headers broken off": [(HEADERS, 0, 1, b""), (PING, 0, 0, bytes(8))],
    "a continuation of nothing": [(CONTINUATION, END_HEADERS, 1, b"")],
    "padding of headers": [(HEADERS, END_HEADERS | PADDED, 1, b"\x09abc")],
    "padding of no headers": [(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"")],
    "a promise": [(PROMISE, END_HEADERS, 1, bytes(4))],
    "a reset": [(RESET, 0, 1, _NUMBER.pack(2))],
    "half a reset": [(RESET, 0, 1, b"\x00")],
    "half a farewell": [(GOING, 0, 0, b"\x00")],
    "half a window": [(WINDOW, 0, 0, b"\x00")],
    "half a setting": [(SETTINGS, 0, 0, b"\x00")],
    "a window without bounds": [(WINDOW, 0, 0, _NUMBER.pack((1 << 31) - 1))],
    "an initial window without bounds": [(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, (1 << 32) - 1))],
    "frames too small": [(SETTINGS, 0, 0, struct.pack(">HI", LARGEST_FRAME, 5))],
}


@pytest.mark.parametrize("frames", NONSENSE.values(), ids=NONSENSE)
def test_who_does_not_keep_to_the_protocol_is_given_up(frames: list[tuple[int, int, int, bytes]]) -> None:
    """Nothing is taken for an answer that is none, no memory without bound is taken, and the frame is told of."""

    def say(server: Peer) -> None:
        for frame in frames:
            server.send(*frame)

    with peer(called(say)) as address, pytest.raises(Http2Error) as raised:
        ask(address)
    assert not raised.value.is_refused


def test_padding_beyond_its_frame_is_not_read_as_the_next() -> None:
    """It would take the frames behind for part of this."""

    def say(server: Peer) -> None:
        server.send(HEADERS, END_HEADERS, 1, server.block(*OK))
        server.send(DATA, PADDED | END_STREAM, 1, b"\x05ab")

    with peer(called(say)) as address, pytest.raises(Http2Error, match="padding"):
        ask(address)


def test_a_body_that_takes_no_more_ends_the_call() -> None:
    """How much is taken is for whoever asks to say."""

    def say(server: Peer) -> None:
        server.send(HEADERS, END_HEADERS, 1, server.block(*OK))
        server.send(DATA, END_STREAM, 1, bytes(99))

    body = Bytes(most=20)
    with peer(called(say)) as address, pytest.raises(OverflowError):
        ask(address, body)
    assert body.taken == bytes(20)


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x04\x01\x00\x00\x00\x00",
        b"\x00\x00\x08\x06\x00\x00\x00\x00\x00",
    ],
    ids=["HTTP/1.1", "an acknowledgement", "a ping"],
)
def test_a_server_that_does_not_greet_is_none(greeting: bytes) -> None:
    """The port of another door, most likely."""

    def script(server: Peer) -> None:
        server.connection.sendall(greeting)
        server.until_end()

    with peer(script) as address, pytest.raises(Http2Error, match="greet"):
        ask(address)


@pytest.mark.parametrize("kind", [PING, SETTINGS], ids=["pings", "settings"])
def test_who_talks_without_end_is_heard_until_the_time_is_over(kind: int) -> None:
    """Each word is in time, and the answer never comes; between two calls as well."""

    def script(server: Peer) -> None:
        server.greet()
        server.hear_greeting()
        with pytest.raises(ConnectionError):
            forever(lambda: server.send(kind, 0, 0, bytes(8 if kind == PING else 0)))

    for act in (lambda caller: caller.exchange(BLOCK, (b"call",), Bytes()), Connection.hear):
        with peer(script) as address, connection(address, 0.3) as caller, pytest.raises(TimeoutError):
            forever(partial(act, caller))


def test_a_silent_server_is_waited_for_no_longer_than_said() -> None:
    """To take a call, and to answer it."""

    def script(server: Peer) -> None:
        server.greet(window=0)
        server.hear_greeting()
        server.until_end()

    for parts in ((b"call",), (bytes(1 << 20),)):
        with peer(script) as address, connection(address, 0.3) as caller, pytest.raises(TimeoutError):
            caller.exchange(BLOCK, parts, Bytes())
