"""Connections over TCP, plain or within TLS, on which one thread reads while another writes."""

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol

from shared.compression import Buffer

_AHEAD_BYTES = 1 << 14  # A large read goes past the buffer for small ones.
_PARTS_AT_A_TIME = 512  # That the kernel is given; it takes 1,024.
_KEPT_S, _ASKED_S, _MOST_ASKED = 60, 15, 4  # A peer that has been silent so long is asked for, so often.
_TLS_BYTES = 1 << 18  # At a time.

Blocked = Callable[[], AbstractContextManager[None]]  # Entered while a peer takes nothing.


class Wire(Protocol):
    """One connection. Its calls raise OSError once it is broken."""

    def greet(self) -> None:
        """Do what stands before the first byte."""

    def fill(self, room: memoryview) -> None:
        """Wait for as many bytes as there is room for. One thread at a time."""

    def send(self, parts: Sequence[Buffer], blocked: Blocked) -> None:
        """Send all of these, one behind the other. One thread at a time."""

    def end(self) -> None:
        """Nothing more will be sent."""

    def cut(self) -> None:
        """End it, from any thread: whoever waits on it, or will, waits no more."""

    def close(self) -> None:
        """Let go of it, once nobody uses it."""


class PlainWire:
    """TCP alone."""

    def __init__(self, connection: socket.socket, untaken_s: float) -> None:
        """`untaken_s`: for so long the peer's system may acknowledge nothing."""
        self._socket = connection
        self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        self._ahead = self._buffer[:0]  # What has come and has not been read.
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, _KEPT_S),
            (socket.TCP_KEEPINTVL, _ASKED_S),
            (socket.TCP_KEEPCNT, _MOST_ASKED),
            (socket.TCP_USER_TIMEOUT, round(untaken_s * 1e3)),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def greet(self) -> None:
        """See Wire."""

    def fill(self, room: memoryview) -> None:
        """See Wire."""
        while room:
            if self._ahead:
                count = min(len(room), len(self._ahead))
                room[:count] = self._ahead[:count]
                room, self._ahead = room[count:], self._ahead[count:]
            elif len(room) < len(self._buffer):  # One call of the kernel for several small reads.
                self._ahead = self._buffer[: self.some(self._buffer)]
            else:
                room = room[_some(self._socket.recv_into(room, len(room), socket.MSG_WAITALL)) :]

    def some(self, room: memoryview) -> int:
        """Wait for some bytes; how many came."""
        return _some(self._socket.recv_into(room))

    def send(self, parts: Sequence[Buffer], blocked: Blocked) -> None:
        """See Wire."""
        left = [memoryview(part) for part in parts if len(part)]
        left.reverse()
        try:
            self._send(left, socket.MSG_DONTWAIT)
        except BlockingIOError:
            with blocked():
                self._send(left, 0)

    def end(self) -> None:
        """See Wire."""
        with suppress(OSError):  # It has ended already.
            self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """See Wire."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See Wire."""
        self._socket.close()

    def _send(self, left: list[memoryview], flags: int) -> None:
        """Send what is left, the last first, and take it out."""
        while left:
            sent = self._socket.sendmsg(left[: -_PARTS_AT_A_TIME - 1 : -1], [], flags)
            while left and sent >= len(left[-1]):
                sent -= len(left.pop())
            if sent:
                left[-1] = left[-1][sent:]


class SecureWire:
    """TLS: a library that is no two threads' at once, between two that wait for the network without it."""

    def __init__(self, connection: socket.socket, untaken_s: float, context: ssl.SSLContext) -> None:
        """`untaken_s`: as of a PlainWire."""
        self._plain = PlainWire(connection, untaken_s)
        self._coming, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._leaving, server_side=True)
        self._lock = threading.Lock()  # Of the library.
        self._came = memoryview(bytearray(_TLS_BYTES))

    def greet(self) -> None:
        """See Wire."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send(nullcontext)
                self._take()
                continue
            self._send(nullcontext)
            return

    def fill(self, room: memoryview) -> None:
        """See Wire."""
        while room:
            try:
                with self._lock:
                    room = room[_some(self._tls.read(len(room), room)) :]  # type: ignore[arg-type]  # It takes views.
            except ssl.SSLWantReadError:
                self._take()

    def send(self, parts: Sequence[Buffer], blocked: Blocked) -> None:
        """See Wire."""
        whole = memoryview(b"".join(parts))  # A record holds 16 KB: each small part would be one of its own.
        while whole:
            with self._lock:
                whole = whole[self._tls.write(whole[:_TLS_BYTES]) :]
            self._send(blocked)

    def end(self) -> None:
        """See Wire."""
        self._plain.end()

    def cut(self) -> None:
        """See Wire."""
        self._plain.cut()

    def close(self) -> None:
        """See Wire."""
        self._plain.close()

    def _send(self, blocked: Blocked) -> None:
        with self._lock:
            going = self._leaving.read()
        self._plain.send([going], blocked)

    def _take(self) -> None:
        count = self._plain.some(self._came)
        with self._lock:
            self._coming.write(self._came[:count])


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("the other end has closed the connection")
    return count
