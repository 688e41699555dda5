"""A receiver of traces: reads OTLP over HTTP with OpenTelemetry's own message types, and can misbehave."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Answer = Callable[[BaseHTTPRequestHandler], None]


def accept(request: BaseHTTPRequestHandler) -> None:
    """Accepts the spans."""
    request.send_response(200)
    request.send_header("Content-Length", "0")
    request.end_headers()


def refuse(request: BaseHTTPRequestHandler) -> None:
    """Refuses them, and asks to wait for an hour."""
    request.send_response(503)
    request.send_header("Retry-After", "3600")
    request.send_header("Content-Length", "0")
    request.end_headers()


def redirect(request: BaseHTTPRequestHandler) -> None:
    """Sends the caller in a circle."""
    request.send_response(307)
    request.send_header("Location", request.path)
    request.send_header("Content-Length", "0")
    request.end_headers()


def hang(request: BaseHTTPRequestHandler) -> None:
    """Never answers."""
    with suppress(OSError):
        request.connection.settimeout(120)
        request.connection.recv(1)


def pour(request: BaseHTTPRequestHandler) -> None:
    """Answers with a body that has no end."""
    request.send_response(200)
    request.end_headers()
    with suppress(OSError):
        while True:
            request.wfile.write(bytes(1 << 16))


def drip(request: BaseHTTPRequestHandler) -> None:
    """Sends one byte of a header a second, until the receiver ends."""
    assert isinstance(request.server, _Server)
    with suppress(OSError):
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not request.server.ended.wait(1):
            request.wfile.write(b"x")
            request.wfile.flush()


def talk_nonsense(request: BaseHTTPRequestHandler) -> None:
    """Answers with what is no HTTP."""
    request.wfile.write(b"\xff" * 4096)


def hang_up(request: BaseHTTPRequestHandler) -> None:
    """Breaks the connection."""
    request.connection.shutdown(socket.SHUT_RDWR)


MISBEHAVIOURS = (refuse, redirect, hang, pour, drip, talk_nonsense, hang_up)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ended = threading.Event()


class OtlpReceiver:
    """A receiver at a free port; `url` is its base URL, and `spans` has what it received."""

    def __init__(self, answer: Answer = accept) -> None:
        self.spans: list[tuple[str, Any]] = []  # Service and span.
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        receiver.spans += [(names["service.name"], span) for span in scope.spans]
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.ended.set()
        self._server.shutdown()
        self._server.socket.close()

    def named(self, service: str, name: str) -> list[Any]:
        """Returns the spans of a service with a name."""
        return [span for each, span in self.spans if (each, span.name) == (service, name)]
