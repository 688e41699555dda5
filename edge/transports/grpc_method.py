"""A unary method of a gRPC server, called over connections that are kept, one call on each at a time.

See gRPC over HTTP2 (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md).
"""

import ssl
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from urllib.parse import unquote

import numpy as np

from edge.transports.http2 import Connection
from edge.transports.wire import Wire
from shared import clock
from shared.compression import Buffer
from shared.endpoint import Endpoint
from shared.grpc_words import CODES, GRPC, OK, PREFIX, text, value
from shared.header_lists import packed
from shared.http2 import Http2Error

_CONNECT_S = 5.0
_LISTEN_S = 0.2
_MOST_MS = 99_999_999  # Eight digits are the protocol's.
_NO_TABLE = b"\x20"  # Of HPACK: we fill no table. Whoever asks for a smaller one waits to be told of it.
_CODES_OF_RESETS = {8: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}  # By those of HTTP/2.
_HTTP_OK = "200"
_CODES_OF_HTTP = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    **dict.fromkeys(("429", "502", "503", "504"), "UNAVAILABLE"),
}

_CODES_BY_NUMBER = {str(number): code for number, code in enumerate(CODES)}

Metadata = Mapping[str, str | bytes]


class CallError(Exception):
    """A call came to nothing."""


class RefusedError(CallError):
    """The server answered with another code than OK."""

    def __init__(self, code: str, details: str, metadata: Metadata) -> None:
        self.code, self.details, self.metadata = code, details, metadata
        super().__init__(f"{code}: {details}")


class LateError(CallError):
    """The answer was not whole in time."""


class TooLargeError(CallError):
    """The answer was larger than is taken."""


class BrokenError(CallError):
    """The connection broke, or the server speaks no gRPC. `is_unsent`: it is certain that nobody got the call."""

    def __init__(self, problem: str, *, is_unsent: bool) -> None:
        self.is_unsent = is_unsent
        super().__init__(problem)


class ClosedError(CallError):
    """It was closed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave."""

    message: memoryview  # Of bytes.
    metadata: Metadata
    came_ns: int  # When the message was whole.


class GrpcMethod:
    """Any thread may call it; close it. Nothing is sent before the first call."""

    def __init__(
        self,
        address: Endpoint,
        path: str,
        *,
        most_bytes: int,
        context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`path`: /package.Service/Method. `most_bytes`: of an answer. `context`: of TLS. `headers`: of every call."""
        self._address, self._context, self._most_bytes = address, context, most_bytes
        told = {
            ":method": "POST",
            ":scheme": "https" if context else "http",
            ":path": path,
            ":authority": str(address),
            "te": "trailers",
            "content-type": GRPC,
            "user-agent": "skylane",
        }
        self._block = _NO_TABLE + packed((told | dict(headers or {})).items())
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()  # All that are open.
        self._idle: list[Connection] = []  # The one used last stands last.
        self._closed = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="grpc-idle", daemon=True)

    def call(
        self, parts: Sequence[Buffer], timeout_s: float, metadata: Iterable[tuple[str, str | bytes]] = ()
    ) -> Answer:
        """Call it with the message that the parts make, and wait for its answer.

        Raises:
            CallError: there is none.
        """
        until_s = time.monotonic() + timeout_s
        told = _timeout(min(ceil(timeout_s * 1e3), _MOST_MS)) + packed((name, text(told)) for name, told in metadata)
        prefix = PREFIX.pack(0, sum(map(len, parts)))
        message = _Message(self._most_bytes)
        connection = self._connected(until_s)
        try:
            fields = connection.exchange(self._block + told, (prefix, *parts), message)
        except (OSError, Http2Error) as error:
            raise self._problem(error, connection) from error
        finally:
            self._let_go(connection)
        return _read(fields, message)

    def close(self) -> None:
        """Hang up: calls under way come to nothing."""
        self._closed.set()
        with self._lock:
            for wire in self._wires:
                wire.cut()
        self._drop_idle()
        if self._listener.ident is not None:
            self._listener.join()

    def _connected(self, until_s: float) -> Connection:
        """A connection that is open, and nobody else's.

        Raises:
            BrokenError: there can be none.
            ClosedError: it was closed.
        """
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._opened(until_s)
            if _is_open(connection, until_s):
                return connection
            self._drop(connection.wire)

    def _opened(self, until_s: float) -> Connection:
        with self._lock:
            if self._closed.is_set():
                raise ClosedError
            wire = Wire(min(until_s, time.monotonic() + _CONNECT_S))
            if self._listener.ident is None:
                self._listener.start()
            self._wires.add(wire)
        try:
            wire.connect(self._address, self._context)
            connection = Connection(wire)
        except (OSError, Http2Error) as error:
            self._drop(wire)
            if self._closed.is_set():
                raise ClosedError from error
            if isinstance(error, TimeoutError) and time.monotonic() >= until_s:
                raise LateError(str(error)) from error
            raise BrokenError(f"it cannot be reached: {error}", is_unsent=True) from error
        wire.until_s = until_s
        return connection

    def _let_go(self, connection: Connection) -> None:
        """Keep a connection for the next call, where there can be one."""
        with self._lock:
            is_kept = not connection.is_spent and not self._closed.is_set()
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            self._drop(connection.wire)

    def _listen(self) -> None:
        """Answer what is asked between calls, so that a server that ends need not wait for us; the body of a thread."""
        while not self._closed.wait(_LISTEN_S):
            with self._lock:
                until_s = time.monotonic() + _LISTEN_S
                gone = [connection for connection in self._idle if not _is_open(connection, until_s)]
                self._idle = [connection for connection in self._idle if connection not in gone]
            for connection in gone:
                self._drop(connection.wire)

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._drop(connection.wire)

    def _drop(self, wire: Wire) -> None:
        with self._lock:
            self._wires.discard(wire)
        wire.close()

    def _problem(self, error: OSError | Http2Error, connection: Connection) -> CallError:
        """What came of a call whose connection gave out."""
        if self._closed.is_set():
            return ClosedError()
        if (
            isinstance(error, TimeoutError) and error.errno is None
        ):  # Else it is the kernel's, of a connection that broke.
            self._drop_idle()  # They may be as dead as this one.
            return LateError(str(error))
        if not connection.is_sent:
            return BrokenError(str(error), is_unsent=True)
        if isinstance(error, Http2Error) and error.code is not None and not error.is_refused:
            return RefusedError(_CODES_OF_RESETS.get(error.code, "INTERNAL"), str(error), {})
        return BrokenError(str(error), is_unsent=isinstance(error, Http2Error) and error.is_refused)


def _is_open(connection: Connection, until_s: float) -> bool:
    """Whether a call can be made on a connection that is idle; what has come on it is heard."""
    connection.wire.until_s = until_s
    try:
        connection.hear()
    except (OSError, Http2Error):
        return False
    return not connection.is_spent


class _Message:
    """The one message of an answer, behind what announces it."""

    def __init__(self, most_bytes: int) -> None:
        self.came_ns: int | None = None  # When it was whole; None: it is not.
        self._most_bytes = most_bytes
        self._prefix = bytearray(PREFIX.size)
        self._left = memoryview(self._prefix)
        self._data: memoryview | None = None

    @property
    def data(self) -> memoryview:
        """The message, once it is whole."""
        assert self._data is not None
        return self._data

    def begin(self, fields: Mapping[str, str]) -> None:
        """See Body.

        Raises:
            RefusedError: they are not gRPC's.
        """
        _check(fields)

    def room(self) -> memoryview:
        """See Body.

        Raises:
            RefusedError: another message follows, which none of ours does.
        """
        if not self._left:
            raise RefusedError("INTERNAL", "it answers with more than one message", {})
        return self._left

    def took(self, count: int) -> None:
        """See Body.

        Raises:
            RefusedError: the message is compressed.
            TooLargeError: it is larger than is taken.
        """
        self._left = self._left[count:]
        if not self._left and self._data is None:
            is_compressed, size = PREFIX.unpack(self._prefix)
            if is_compressed:
                raise RefusedError("INTERNAL", "its answer is compressed, which nobody asked for", {})
            if size > self._most_bytes:
                raise TooLargeError(f"its answer has {size} bytes, and {self._most_bytes} are taken")
            self._data = self._left = np.empty(size, np.uint8).data  # Unlike a bytearray, it is not filled first.
        if not self._left:
            self.came_ns = clock.now_ns()


def _read(fields: Mapping[str, str], message: _Message) -> Answer:
    """What an answer says.

    Raises:
        RefusedError: it is none, or no.
    """
    _check(fields)
    metadata = {name: value(name, written) for name, written in fields.items() if not name.startswith((":", "grpc-"))}
    number = fields.get("grpc-status", "")
    code = _CODES_BY_NUMBER.get(number, "UNKNOWN")
    if code != OK:
        raise RefusedError(code, unquote(fields.get("grpc-message", ""), errors="replace"), metadata)
    if message.came_ns is None:
        raise RefusedError("INTERNAL", "it answers OK without a whole message", metadata)
    return Answer(message.data, metadata, message.came_ns)


def _check(fields: Mapping[str, str]) -> None:
    """See to it that an answer's header fields are those of gRPC.

    Raises:
        RefusedError: they are not.
    """
    status, content_type = fields.get(":status", ""), fields.get("content-type", "")
    if status != _HTTP_OK:
        raise RefusedError(_CODES_OF_HTTP.get(status, "UNKNOWN"), f"it answers HTTP {status or 'without a status'}", {})
    if not content_type.startswith(GRPC):
        raise RefusedError("UNKNOWN", f"it answers in {content_type or 'no content-type'}, and not in gRPC", {})


@lru_cache(maxsize=64)
def _timeout(milliseconds: int) -> bytes:
    """Most calls of a vehicle have the same."""
    return packed([("grpc-timeout", f"{milliseconds}m")])
