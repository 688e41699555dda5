"""An end of an HTTP/2 connection that says what a test has it say."""

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from hpack import Decoder, Encoder

from shared.endpoint import Endpoint

DATA, HEADERS, RESET, SETTINGS, PROMISE, PING, GOING, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
HEADER_TABLE, INITIAL_WINDOW, LARGEST_FRAME = 1, 4, 5  # Settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OK = ((":status", "200"), ("content-type", "application/grpc"))
WAIT_S = 20.0


class Frame(NamedTuple):
    """As it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Peer:
    """One end, a server's or a caller's, with one call at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Else what is said last may not leave.
        self._encoder = Encoder()
        self._decoder = Decoder()

    def greet(self, settings: Mapping[int, int] | None = None, *, window: int = 1 << 30) -> None:
        """Say what a server says first; `window`: what it lets in of all calls, beyond the 65,535 at the start."""
        self.send(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in (settings or {}).items()))
        if window:
            self.send(WINDOW, 0, 0, struct.pack(">I", window))

    def hear_greeting(self) -> None:
        """What a caller says first."""
        assert self._read(len(PREFACE)) == PREFACE

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """Send a frame."""
        head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        self.connection.sendall(head + payload)

    def block(self, *fields: tuple[str, str]) -> bytes:
        """A header list, packed."""
        packed: bytes = self._encoder.encode(fields)
        return packed

    def read(self, frame: Frame) -> dict[str, str]:
        """The fields of a header list that came."""
        return {str(name): str(value) for name, value in self._decoder.decode(frame.payload)}

    def set_table(self, size: int) -> None:
        """Remember at most so many bytes of what header lists said."""
        self._decoder.max_allowed_table_size = size

    def next(self) -> Frame:
        """The next frame that comes.

        Raises:
            EOFError: none will.
        """
        head = self._read(9)
        return Frame(head[3], head[4], int.from_bytes(head[5:], "big"), self._read(int.from_bytes(head[:3], "big")))

    def call(self) -> bytes:
        """Wait for the whole of a call; its body."""
        body = b""
        while True:
            frame = self.next()
            if frame.kind == DATA:
                body += frame.payload
                if frame.flags & END_STREAM:
                    return body

    def answer(self, stream: int, body: bytes) -> None:
        """Answer with a body, well."""
        self.send(HEADERS, END_HEADERS, stream, self.block(*OK))
        self.send(DATA, 0, stream, body)
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, self.block(("grpc-status", "0")))

    def until_end(self) -> None:
        """Hear the other end out, until it hangs up."""
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError):
            pass

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


@contextmanager
def peer(*scripts: Callable[[Peer], None]) -> Iterator[Endpoint]:
    """Takes a connection for each script, one after the other; what a script raises fails the test."""

    def serve() -> None:
        for script in scripts:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(WAIT_S)
                script(Peer(connection))

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1, "peer") as threads:
        server.settimeout(WAIT_S)
        serving = threads.submit(serve)
        yield Endpoint("127.0.0.1", server.getsockname()[1])
        serving.result(WAIT_S)
