"""A small HTTP server for few clients, of which slow and silent ones keep no others out."""

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from shared.runtime.open_files import connection_limits, raise_file_limit

_MAX_CLIENTS = 16  # At a time.
_REQUEST_S = 5.0  # For a client to send its request.
_SETTLED_S = 1.0  # After which a client that still takes its response may be evicted.


@dataclass(slots=True)
class _Client:
    since_s: float  # Since when it is connected, or since when its request is complete.
    has_asked: bool = False


class BoundedHttpServer(ThreadingMixIn, HTTPServer):
    """Serves each client in a thread of its own. When full, a newcomer evicts the client that has been slow for longest."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, handler: type["BoundedHandler"], *, response_s: float) -> None:
        """Listens; `response_s` is the time for a client to take its response. Raises OSError if that is not possible."""
        self._response_s = response_s
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, _Client] = {}
        # An evicted client keeps its file until its thread has noticed.
        files = connection_limits({"clients": 2 * _MAX_CLIENTS}, raise_file_limit())["clients"]
        self._files = threading.BoundedSemaphore(files)
        self.max_clients = files // 2
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Binds without looking up the host's name, which takes long without a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a client; closes it if no other one may be evicted for it."""
        if not self._make_room() or not self._files.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            self._clients[request] = _Client(time.monotonic())
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a client; the body of its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(request, None)
            self._files.release()

    def asked(self, connection: socket.socket) -> None:
        """Records that the request of a client is complete."""
        with self._lock:
            if connection in self._clients:
                self._clients[connection] = _Client(time.monotonic(), has_asked=True)

    def service_actions(self) -> None:
        """Ends the clients that take too long; `serve_forever` calls it after each poll."""
        now_s = time.monotonic()
        with self._lock:
            for connection, client in list(self._clients.items()):
                if now_s - client.since_s > (self._response_s if client.has_asked else _REQUEST_S):
                    self._end(connection)

    def handle_error(self, *_: object) -> None:
        """Ignores a client that is slow, or has gone."""

    def _make_room(self) -> bool:
        """Evicts the client that has been slow for longest if the server is full; returns whether there is room."""
        now_s = time.monotonic()
        with self._lock:
            if len(self._clients) < self.max_clients:
                return True
            slow = [
                connection
                for connection, client in self._clients.items()
                if not client.has_asked or now_s - client.since_s > _SETTLED_S
            ]
            if slow:
                self._end(min(slow, key=lambda connection: self._clients[connection].since_s))
            return bool(slow)

    def _end(self, connection: socket.socket) -> None:
        """Makes the thread of a client end; the caller holds the lock."""
        del self._clients[connection]
        with suppress(OSError):  # It has ended.
            connection.shutdown(socket.SHUT_RDWR)


class BoundedHandler(BaseHTTPRequestHandler):
    """Base class of the handlers of a `BoundedHttpServer`."""

    server: BoundedHttpServer

    def parse_request(self) -> bool:
        """Reads the headers, and reports that they are complete."""
        is_valid = super().parse_request()
        self.server.asked(self.connection)
        return is_valid

    def log_message(self, *_: object) -> None:
        """Logs nothing: there is a request every few seconds."""
