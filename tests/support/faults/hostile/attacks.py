"""Hostile callers of a gateway: each kind sends its traffic at a bounded rate from one `Child` until it is killed."""

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from ops.processes.child import reply, settings

RATE_BYTES_PER_S = 500_000  # Maximum rate of one hostile process.

_CONNECTIONS = 16  # Default number of connections per process.
_IDLE_CONNECTIONS = 1000
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4  # Identifier of the HTTP/2 setting.
_LARGE_MESSAGE_BYTES = 1 << 30  # Larger than any worker accepts.
_CHUNK_BYTES = 16_384  # Maximum HTTP/2 frame size without negotiation.
_TINY_MESSAGES = 100  # Number of messages in one write.
_REPEATED_FIELDS = 2000  # Number of fields in one header block.
_CALL_TIMEOUT_S = 5.0
_RECEIVE_BYTES = 1 << 16
_RETRY_S = 0.2  # Time before a closed or refused connection is opened again.


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of hostile traffic.

    `payloads` yields the endless data of one connection in pieces; an empty piece sends nothing.
    """

    payloads: Callable[[str], Iterator[bytes]]  # Called with the address, HOST:PORT.
    is_grpc: bool
    connections: int = _CONNECTIONS
    reads: bool = True  # Whether it reads the responses.
    pause_s: float = 0.005  # Pause between two rounds over all connections.


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes an HTTP/2 frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _field(name: str, value: str) -> bytes:
    """Encodes a header field without indexing (RFC 7541, section 6.2.2); both texts are shorter than 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def _call(stream: int, address: str, path: str) -> bytes:
    """Encodes the headers that begin a gRPC call."""
    return _frame(_HEADERS, _END_HEADERS, stream, _call_fields(address, path))


def _call_fields(address: str, path: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(itertools.starmap(_field, fields.items()))


def _nested_json(address: str) -> Iterator[bytes]:
    """Yields requests with deeply nested JSON for a model that does not exist."""
    for depth in itertools.cycle((65, 129, 500, 900, 2000)):
        body = b'{"instances": ' + b"[" * depth + b"1, " * 1400 + b"1" + b"]" * depth + b"}"
        head = f"POST /v1/models/x:predict HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n"
        yield head.encode() + b"Content-Type: application/json\r\n\r\n" + body


def _tiny_messages(address: str) -> Iterator[bytes]:
    """Yields empty messages, each in its own frame, on one open stream of inferences."""
    yield _PREFACE + _frame(_SETTINGS, 0, 0)
    yield _call(1, address, "/inference.GRPCInferenceService/ModelStreamInfer")
    messages = _frame(_DATA, 0, 1, b"\x00\x00\x00\x00\x00") * _TINY_MESSAGES
    while True:
        yield messages


def _repeated_headers(address: str) -> Iterator[bytes]:
    """Yields calls whose headers repeat one indexed field of 4 KB thousands of times, in one byte each."""
    yield _PREFACE + _frame(_SETTINGS, 0, 0)
    value = b"v" * 3900
    entry = b"\x40\x01a\x7f" + _integer(len(value) - 127) + value  # Literal with indexing, which becomes entry 62.
    fields = _call_fields(address, "/inference.GRPCInferenceService/ServerLive")
    for stream in itertools.count(1, 2):
        block = fields + (entry if stream == 1 else b"") + b"\xbe" * _REPEATED_FIELDS
        yield _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, block)


def _integer(value: int) -> bytes:
    """Encodes the continuation of an HPACK integer (RFC 7541, section 5.1)."""
    digits = bytearray()
    while value >= 128:
        digits.append(value % 128 + 128)
        value //= 128
    return bytes((*digits, value))


def _large_calls(address: str) -> Iterator[bytes]:
    """Yields calls that announce a gigabyte and keep sending, whatever the response is."""
    yield _PREFACE + _frame(_SETTINGS, 0, 0)
    for stream in itertools.count(1, 2):
        yield _call(stream, address, "/skylane.v1.Worker/Answer")
        yield _frame(_DATA, 0, stream, b"\x00" + struct.pack(">I", _LARGE_MESSAGE_BYTES))
        yield _frame(_DATA, 0, stream, b"\0" * _CHUNK_BYTES)
        yield _frame(_DATA, 0, stream, b"\0" * _CHUNK_BYTES)
        yield _frame(_RESET, 0, stream, b"\0\0\0\x08")


def _slow_reads(address: str) -> Iterator[bytes]:
    """Yields calls whose responses cannot be sent, because the flow control window is zero."""
    yield _PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0))
    for stream in itertools.count(1, 2):
        yield _call(stream, address, "/inference.GRPCInferenceService/ServerMetadata")
        yield _frame(_DATA, _END_STREAM, stream, b"\x00\x00\x00\x00\x00")


def _idle(_: str) -> Iterator[bytes]:
    """Yields the connection preface and then nothing."""
    yield _PREFACE + _frame(_SETTINGS, 0, 0)
    while True:
        yield b""


ATTACKS = {
    "nested-json": Attack(_nested_json, is_grpc=False),
    "tiny-messages": Attack(_tiny_messages, is_grpc=True),
    "repeated-headers": Attack(_repeated_headers, is_grpc=True),
    "large-calls": Attack(_large_calls, is_grpc=True),
    "slow-reads": Attack(_slow_reads, is_grpc=True, reads=False),
    "idle-connections": Attack(_idle, is_grpc=True, connections=_IDLE_CONNECTIONS, pause_s=0.5),
}


class _Connection:
    """One hostile connection, which is opened again when the server closes it."""

    def __init__(self, attack: Attack, address: str) -> None:
        self._attack = attack
        self._address = address
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        self._socket: socket.socket | None = None
        self._payloads: Iterator[bytes] = iter(())
        self._unsent = b""
        self._opens_at_s = 0.0

    def step(self, allowed_bytes: int) -> int:
        """Sends as much as the connection accepts now, at most `allowed_bytes`; returns the number of bytes."""
        if self._socket is None and not self._is_opened():
            return 0
        assert self._socket is not None
        try:
            if self._attack.reads:
                self._discard(self._socket)
            if not self._unsent:
                self._unsent = next(self._payloads)
            if not self._unsent:
                return 0
            sent = self._socket.send(self._unsent[:allowed_bytes])
        except BlockingIOError:
            return 0
        except OSError:
            self._close()
            return 0
        self._unsent = self._unsent[sent:]
        return sent

    def _discard(self, connection: socket.socket) -> None:
        with suppress(BlockingIOError):
            while data := connection.recv(_RECEIVE_BYTES):
                if len(data) < _RECEIVE_BYTES:
                    return
            raise ConnectionError("closed by the server")

    def _is_opened(self) -> bool:
        if time.monotonic() < self._opens_at_s:
            return False
        self._opens_at_s = time.monotonic() + _RETRY_S
        try:
            self._socket = socket.create_connection(self._to, timeout=_CALL_TIMEOUT_S)
        except OSError:
            return False
        self._socket.settimeout(0)
        self._payloads, self._unsent = self._attack.payloads(self._address), b""
        return True

    def _close(self) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None


def attack(*, kind: str, http: str, grpc: str) -> None:
    """Sends one kind of traffic endlessly, at most at `RATE_BYTES_PER_S`, and replies when the connections are open.

    `http`, `grpc`: HOST:PORT of the worker's endpoints.
    """
    chosen = ATTACKS[kind]
    address = grpc if chosen.is_grpc else http
    connections = [_Connection(chosen, address) for _ in range(chosen.connections)]
    for connection in connections:
        connection.step(1)
    reply("attacking")
    began_s, sent = time.monotonic(), 0
    for connection in itertools.cycle(connections):
        if connection is connections[0]:
            time.sleep(chosen.pause_s)
        allowed = round((time.monotonic() - began_s) * RATE_BYTES_PER_S) - sent
        if allowed > 0:
            sent += connection.step(min(allowed, _RECEIVE_BYTES))


if __name__ == "__main__":
    attack(**settings())
