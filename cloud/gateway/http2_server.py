"""Connections of HTTP/2 on one port: whom it lets in, how many, and when they go."""

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from cloud.gateway.capacity import Capacity
from cloud.gateway.deadlines import Deadlines
from cloud.gateway.http2_connection import Connection
from cloud.gateway.http2_terms import ConnectionTerms, Handler
from cloud.gateway.listening import listen
from cloud.gateway.places import Place, Places
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.wires import PlainWire, SecureWire, Wire
from shared import clock
from shared.call_threads import CallThreads
from shared.grpc_words import PREFIX

MOST_CONNECTIONS = 1_024

_MESSAGES_AT_A_TIME = 4  # Of the largest, that all calls together may hold.
_GRACE_S = 5.0
_FAREWELL_S = 0.3  # Within which a caller that has been told hangs up by itself.
_LOOK_S = 1.0  # How often it is looked for messages that do not come, and answers that are not taken.
_HANDSHAKE_S = 10.0  # Within which a connection must have begun to speak.
_REST_S = 0.1  # After a connection that could not be taken: there may be no number for another file.


class Http2Server:
    """Serves from `start` until `close`. A connection has a thread of its own, and so has a call; both are bounded."""

    def __init__(
        self, settings: GatewaySettings, handlers: Mapping[str, Handler], unknown: Handler, threads: CallThreads
    ) -> None:
        """`handlers`: by path. `unknown`: refuses calls of any other. `threads`: as many as `most_threads` says.

        Raises:
            ListenError: the address is none, or another's.
        """
        self._settings = settings
        self._stopping = threading.Event()
        self._threads = threads
        self._awaited = Places(max(1, settings.max_calls // 2))
        self._untaken = Places(settings.max_calls)
        self._deadlines = Deadlines("grpc deadlines")
        self._terms = ConnectionTerms(
            handlers,
            unknown,
            threads,
            Capacity(settings.max_calls, _MESSAGES_AT_A_TIME * (settings.max_message_bytes + PREFIX.size)),
            self._deadlines,
            self._awaited,
            self._untaken,
            most_bytes=settings.max_message_bytes,
            most_streams=settings.max_calls,
        )
        self._tls = _tls(settings)
        self._changed = threading.Condition()
        self._places = Places(MOST_CONNECTIONS)
        self._connections: dict[Connection, Place] = {}
        self._helpers = [
            threading.Thread(target=self._accept, name="grpc accept", daemon=True),
            threading.Thread(target=self._look, name="grpc look", daemon=True),
        ]
        self._listener = listen("gRPC", settings.grpc or "")
        self.port: int = self._listener.getsockname()[1]

    def start(self) -> None:
        """Take calls from now on."""
        self._deadlines.start()
        for thread in self._helpers:
            thread.start()

    def close(self) -> None:
        """End streams, give calls under way a moment, and let go of the port."""
        self._stopping.set()
        with suppress(OSError):  # It wakes who accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._helpers:
            if thread.ident is not None:
                thread.join()
        self._listener.close()
        for connection in list(self._connections):
            connection.leave()
        with self._changed:
            self._changed.wait_for(lambda: all(connection.is_left for connection in self._connections), _GRACE_S)
            self._changed.wait_for(lambda: not self._connections, _FAREWELL_S)
        for connection in list(self._connections):
            connection.cancel()
        self._deadlines.close()

    def _accept(self) -> None:
        """Take connections; the body of a thread."""
        while not self._stopping.is_set():
            try:
                accepted, address = self._listener.accept()
            except OSError:
                self._stopping.wait(_REST_S)
                continue
            try:
                self._serve(accepted, address[0])
            except (OSError, RuntimeError):  # It has gone, or nobody can serve it.
                accepted.close()

    def _serve(self, accepted: socket.socket, host: str) -> None:
        connection = Connection(self._wire(accepted), host, self._terms, self._closed, self._left)
        with self._changed:
            self._connections[connection] = self._places.enter(connection)
        try:
            self._threads.run(connection.serve)
        except RuntimeError:  # There can be no thread more.
            self._closed(connection)
            raise

    def _wire(self, accepted: socket.socket) -> Wire:
        if self._tls is None:
            return PlainWire(accepted, self._settings.answer_s)
        return SecureWire(accepted, self._settings.answer_s, self._tls)

    def _closed(self, connection: Connection) -> None:
        with self._changed:
            self._places.leave(self._connections.pop(connection))
            self._changed.notify_all()

    def _left(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _look(self) -> None:
        """End what takes too long; the body of a thread."""
        settings = self._settings
        while not self._stopping.wait(min(_LOOK_S, settings.body_s, settings.answer_s)):
            self._untaken.end_those_before(clock.now_ns() - round(settings.answer_s * 1e9))
            self._awaited.end_those_before(clock.now_ns() - round(settings.body_s * 1e9))
            late_s = time.monotonic() - _HANDSHAKE_S
            with self._changed:
                late = [each for each in self._connections if not each.is_greeted and each.since_s < late_s]
            for connection in late:
                connection.cancel()


def most_threads(settings: GatewaySettings) -> int:
    """For every connection one that reads, for every call two: a stream of calls has another that begins them."""
    return MOST_CONNECTIONS + 2 * settings.max_calls


def _tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    context.set_alpn_protocols(["h2"])
    return context
