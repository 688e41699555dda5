"""A connection over TCP, plain or within TLS, on which all that is awaited has one moment to come by."""

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress

from shared.compression import Buffer
from shared.endpoint import Endpoint

_LONGEST_S = 2e6  # That Python lets a socket wait.
_AHEAD_BYTES = 1 << 12  # A large read goes past the buffer for small ones.
_PARTS_AT_A_TIME = 512  # That the kernel is given; it takes 1,024.


class Wire:
    """An open connection; close it. Any of its calls raises OSError: TimeoutError at that moment, others of a broken one."""

    def __init__(self, address: Endpoint, context: ssl.SSLContext | None, until_s: float) -> None:
        """Connect. `context`: of TLS, None for none. `until_s`: that moment, by time.monotonic; it may be set anew."""
        self.until_s = until_s
        self._is_secure = context is not None
        self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        self._ahead = self._buffer[:0]  # What has come and has not been read.
        try:
            connection = socket.create_connection((address.host, address.port), timeout=self._left_s())
        except UnicodeError as error:
            raise OSError(f"no host can be called {address.host}: {error}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection.settimeout(self._left_s())
                connection = context.wrap_socket(connection, server_hostname=address.host)
        except BaseException:
            connection.close()
            raise
        self._socket = connection

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all of these, one behind the other, from where they lie."""
        if self._is_secure:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(b"".join(parts))  # A record holds 16 KB: each small part would be one of its own.
            return
        left = [memoryview(part) for part in parts]
        first = 0
        while first < len(left):
            self._socket.settimeout(self._left_s())
            sent = self._socket.sendmsg(left[first : first + _PARTS_AT_A_TIME])
            while first < len(left) and sent >= len(left[first]):
                sent -= len(left[first])
                first += 1
            if sent:
                left[first] = left[first][sent:]

    def fill(self, room: memoryview) -> None:
        """Wait for as many bytes as there is room for, and put them there."""
        while room:
            if self._ahead:
                room = room[self._take_ahead(room) :]
                continue
            self._socket.settimeout(self._left_s())
            if len(room) < len(self._buffer):  # One call of the kernel for several small reads.
                self._ahead = self._buffer[: _some(self._socket.recv_into(self._buffer))]
            else:
                room = room[_some(self._socket.recv_into(room)) :]

    def take(self, room: memoryview) -> int:
        """Put what is here already into a room, without waiting for more; how many bytes that were, 0 for none."""
        if not self._ahead:
            self._left_s()
            self._socket.settimeout(0)
            try:
                self._ahead = self._buffer[: _some(self._socket.recv_into(self._buffer))]
            except (BlockingIOError, ssl.SSLWantReadError):
                return 0
        return self._take_ahead(room)

    def cut(self) -> None:
        """End it, from any thread: whoever waits on it waits no more."""
        with suppress(OSError):  # It has ended already.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # Not TLS's own, which is no other thread's to call.

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()

    def _take_ahead(self, room: memoryview) -> int:
        count = min(len(room), len(self._ahead))
        room[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count

    def _left_s(self) -> float:
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return min(left_s, _LONGEST_S)


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("the other end has closed the connection")
    return count
