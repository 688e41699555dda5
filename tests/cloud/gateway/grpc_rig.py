"""A gRPC server about what a test decides, and callers that say what it has them say."""

import queue
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from cloud.gateway import grpc_conversation
from cloud.gateway.callers import Callers
from cloud.gateway.grpc_service import Service, Terms, UnknownCalls, handlers
from cloud.gateway.http2_server import Http2Server, most_threads
from cloud.gateway.places import Places
from cloud.gateway.settings import GatewaySettings
from shared.call_threads import CallThreads
from tests.http2_peer import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RESET, SETTINGS, WINDOW, Frame, Peer

WAIT_S = 20.0
_LARGE = 1 << 22  # Bytes of a frame.
NUMBER = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Served:
    """A server under test, and what it told."""

    server: Http2Server
    counts: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)
    faults: "queue.SimpleQueue[BaseException]" = field(default_factory=queue.SimpleQueue)


@contextmanager
def served(service: Service, settings: GatewaySettings) -> Iterator[Served]:
    """A server of one service."""
    counts: queue.SimpleQueue[str] = queue.SimpleQueue()
    faults: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    threads = CallThreads("served", most_threads(settings), faults.put)
    conversations = grpc_conversation.Terms(threads, threading.Event(), silent_s=WAIT_S)
    terms = Terms(faults.put, counts.put, Callers({}), Places(4), conversations)
    server = Http2Server(settings, handlers(service, terms), UnknownCalls(terms), threads)
    server.start()
    try:
        yield Served(server, counts, faults)
    finally:
        server.close()
        threads.close()


class Caller(Peer):
    """A caller's end, raw."""

    def greet(self, settings: Mapping[int, int] | None = None, *, window: int = 1 << 30) -> None:
        """Say what a caller says first."""
        self.connection.sendall(PREFACE)
        super().greet(settings, window=window)

    def begin(self, stream: int, path: str, *fields: tuple[str, str], is_last: bool = False) -> None:
        """Begin a call."""
        head = ((":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc"))
        flags = END_HEADERS | (END_STREAM if is_last else 0)
        self.send(HEADERS, flags, stream, self.block(*head, ("te", "trailers"), *fields))

    def ask(self, stream: int, path: str, message: bytes, *fields: tuple[str, str]) -> None:
        """Make a call of one message."""
        self.begin(stream, path, *fields)
        left = announced(message)
        while len(left) > _LARGE:
            self.send(DATA, 0, stream, left[:_LARGE])
            left = left[_LARGE:]
        self.send(DATA, END_STREAM, stream, left)

    def until(self, kind: int, stream: int) -> Frame:
        """The next frame of a kind; what comes before it is passed over."""
        while (frame := self.next()).kind != kind or frame.stream != stream:
            pass
        return frame

    def is_answered(self, stream: int) -> bool:
        """Whether a call ends with OK, and not by another code or broken off."""
        while (frame := self.next()).stream != stream or not (
            frame.kind == RESET or (frame.kind == HEADERS and frame.flags & END_STREAM)
        ):
            if frame.kind == HEADERS:
                self.read(frame)
        return frame.kind == HEADERS and self.read(frame)["grpc-status"] == "0"

    def told(self, stream: int) -> dict[str, str]:
        """What a call's answer ends with: header fields."""
        while not (frame := self.until(HEADERS, stream)).flags & END_STREAM:
            self.read(frame)
        return self.read(frame)


def announced(message: bytes, *, is_folded: int = 0) -> bytes:
    """A message as gRPC has it on the wire."""
    return struct.pack(">BI", is_folded, len(message)) + message


@contextmanager
def caller(
    server: Http2Server, settings: Mapping[int, int] | None = None, *, window: int = 1 << 30
) -> Iterator[Caller]:
    """A connection that has been greeted."""
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        end = Caller(connection)
        end.greet(settings, window=window)
        end.until(SETTINGS, 0)
        end.until(WINDOW, 0)
        yield end
