"""A connection over TCP, plain or within TLS, on which all that is awaited has one moment to come by."""

import select
import socket
import ssl
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from shared.compression import Buffer
from shared.endpoint import Endpoint

_LONGEST_S = 2e6  # That Python lets a socket wait.
_AHEAD_BYTES = 1 << 12  # A large read goes past the buffer for small ones.
_PARTS_AT_A_TIME = 512  # That the kernel is given; it takes 1,024.
# So exactly is that moment kept: to tell the kernel anew before each wait costs as much as the wait.
_NEAR_S = 0.01
_TIMEVAL = struct.Struct("@ll")  # Seconds and microseconds, as Linux has them.


class Wire:
    """Any of its calls raises OSError: a TimeoutError without a number at that moment, others of what is broken."""

    def __init__(self, until_s: float) -> None:
        """`until_s`: that moment, by time.monotonic; it may be set anew. Connect it, and close it."""
        self.until_s = until_s
        self._socket = socket.socket()  # Not the one that will be used: there is none before its address is known.
        self._is_secure = False
        # Tells whether anything has come, where the kernel waits; None: Python does, which asks it three times for each piece.
        self._coming: select.poll | None = None
        self._allowed_s = 0.0  # For how long the kernel waits.
        self._is_cut = False
        self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        self._ahead = self._buffer[:0]  # What has come and has not been read.

    def connect(self, address: Endpoint, context: ssl.SSLContext | None) -> None:
        """Connect to the first address of a host that takes us. `context`: of TLS, None for none."""
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"no host can be called {address.host}: {error}") from error
        for left, (family, kind, protocol, _, where) in zip(range(len(found), 0, -1), found, strict=True):
            self._socket.close()
            self._socket = socket.socket(family, kind, protocol)
            try:
                self._socket.settimeout(self._left_s() / left)  # One that is silent leaves the others their time.
                self._socket.connect(where)
                break
            except OSError:
                if left == 1:
                    raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._is_secure = True
            self._socket.settimeout(self._left_s())
            self._socket = context.wrap_socket(
                self._socket, server_hostname=address.host, do_handshake_on_connect=False
            )
            self._socket.do_handshake()
        elif sys.platform == "linux":
            self._socket.settimeout(None)
            self._coming = select.poll()
            self._coming.register(self._socket, select.POLLIN)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all of these, one behind the other, from where they lie."""
        if self._is_secure:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(b"".join(parts))  # A record holds 16 KB: each small part would be one of its own.
            return
        left = [memoryview(part) for part in parts]
        first = 0
        while first < len(left):
            self._allow()
            try:
                sent = self._socket.sendmsg(left[first : first + _PARTS_AT_A_TIME])
            except BlockingIOError:  # The kernel has waited for as long as it was allowed.
                continue
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
            self._allow()
            try:
                if len(room) < len(self._buffer):  # One call of the kernel for several small reads.
                    self._ahead = self._buffer[: _some(self._socket.recv_into(self._buffer))]
                else:
                    room = room[_some(self._socket.recv_into(room, len(room), self._all)) :]
            except BlockingIOError:  # As above.
                continue

    def take(self, room: memoryview) -> int:
        """Put what is here already into a room, without waiting for more; how many bytes that were, 0 for none."""
        if not self._ahead:
            self._left_s()
            if self._coming is None:
                self._socket.settimeout(0)
            elif not self._coming.poll(0):  # An exception would take longer than the question.
                return 0
            now = 0 if self._coming is None else socket.MSG_DONTWAIT
            try:
                self._ahead = self._buffer[: _some(self._socket.recv_into(self._buffer, len(self._buffer), now))]
            except (BlockingIOError, ssl.SSLWantReadError):
                return 0
        return self._take_ahead(room)

    def cut(self) -> None:
        """End it, from any thread: whoever waits on it, or will, waits no more."""
        self._is_cut = True
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

    @property
    def _all(self) -> int:
        """The flag by which the kernel comes back with a whole piece; Python's own waits know no such thing."""
        return 0 if self._coming is None else socket.MSG_WAITALL

    def _allow(self) -> None:
        """Let the next call wait until that moment."""
        left_s = self._left_s()
        if self._coming is None:
            self._socket.settimeout(left_s)
        elif abs(left_s - self._allowed_s) > _NEAR_S:
            self._allowed_s = left_s
            seconds, rest_s = divmod(left_s, 1)
            timeval = _TIMEVAL.pack(int(seconds), max(1, int(rest_s * 1e6)))  # None at all would be for ever.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _left_s(self) -> float:
        if self._is_cut:
            raise ConnectionAbortedError("the connection was cut")
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return min(left_s, _LONGEST_S)


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("the other end has closed the connection")
    return count
