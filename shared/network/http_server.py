"""A small HTTP server for few clients, in which slow and silent clients do not block others."""

import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from shared.runtime.open_files import connection_limits, raise_file_limit

_MAX_CLIENTS = 16  # Maximum number of clients at a time.
_REQUEST_S = 5.0  # Time limit for a client to send its request.


class BoundedHttpServer(ThreadingMixIn, HTTPServer):
    """An HTTP server with a thread per client. When full, a new client replaces the one that has been slow longest."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # Connections that wait to be accepted; the default of 5 is less than a burst.

    def __init__(self, host: str, port: int, handler: type["BoundedHandler"], *, response_s: float) -> None:
        """Listens; `response_s` is the time for a client to take its response. Raises OSError if that is not possible."""
        self._response_s = response_s
        self._lock = threading.Lock()
        # Clients whose request is incomplete, with the time of their start.
        self._asking: dict[socket.socket, float] = {}
        self._served: dict[socket.socket, float] = {}  # Clients whose request is complete, with that time.
        # An evicted client keeps its file until its thread has noticed.
        files = connection_limits({"clients": 2 * _MAX_CLIENTS}, raise_file_limit())["clients"]
        self._files = threading.BoundedSemaphore(files)
        self._max_clients = files // 2
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Binds without looking up the host's name, which takes long without a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a client; when full, evicts another client, first one that has not sent its request."""
        with self._lock:
            clients = [*self._asking, *self._served]
            if len(clients) >= self._max_clients:
                self._end(clients[0])
            has_file = self._files.acquire(blocking=False)
            if has_file:
                self._asking[request] = time.monotonic()
        if not has_file:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # No further thread can be started.
            with self._lock:
                self._forget(request)
            self._files.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a client; the body of its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._forget(request)
            self._files.release()

    def asked(self, connection: socket.socket) -> None:
        """Records that the request of a client is complete."""
        with self._lock:
            if self._asking.pop(connection, None) is not None:
                self._served[connection] = time.monotonic()

    def service_actions(self) -> None:
        """Ends the clients that take too long; `serve_forever` calls it after each poll."""
        now_s = time.monotonic()
        with self._lock:
            for clients, allowed_s in ((self._asking, _REQUEST_S), (self._served, self._response_s)):
                for connection in [each for each, since_s in clients.items() if now_s - since_s > allowed_s]:
                    self._end(connection)

    def handle_error(self, *_: object) -> None:
        """Ignores errors of a client that is slow or has disconnected."""

    def _forget(self, connection: socket.socket) -> None:
        self._asking.pop(connection, None)
        self._served.pop(connection, None)

    def _end(self, connection: socket.socket) -> None:
        """Makes the thread of a client end; the caller holds the lock."""
        self._forget(connection)
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
