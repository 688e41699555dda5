"""The small HTTP server: slow and silent clients keep no other one out."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from shared.network.http_server import BoundedHandler, BoundedHttpServer

WAIT_S = 60.0
BODY = b"x" * (8 << 20)  # More than the kernel's buffers hold.


class Handler(BoundedHandler):
    """Answers each request with `BODY`, or with nothing."""

    def do_GET(self) -> None:  # noqa: N802  Required by the base class.
        """Sends the response."""
        body = BODY if self.path == "/large" else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(response_s: float = WAIT_S) -> Iterator[int]:
    """Serves on a free port during the block; yields the port."""
    server = BoundedHttpServer("127.0.0.1", 0, Handler, response_s=response_s)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connect(port: int, sent: bytes, stack: ExitStack) -> socket.socket:
    """Connects a client that reads nothing until it is told to."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(WAIT_S)
    client.connect(("127.0.0.1", port))
    client.sendall(sent)
    return client


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nA: b\r\n", b"GET /large HTTP/1.1\r\n\r\n"])
def test_an_honest_client_is_served_beside_many_slow_ones(sent: bytes) -> None:
    """Sixteen that sent nothing, half a request or read no response kept every scrape out, for as long as they came back."""
    with serving() as port, ExitStack() as stack:
        for _ in range(3):
            for _ in range(40):
                connect(port, sent, stack)
            assert httpx.get(f"http://127.0.0.1:{port}/", timeout=WAIT_S, trust_env=False).is_success


def test_half_a_request_and_an_untaken_response_end_by_time() -> None:
    """Without newcomers, too: their threads and files are not held forever."""
    with serving(response_s=0.2) as port, ExitStack() as stack:
        for sent in (b"GET / HT", b"GET /large HTTP/1.1\r\n\r\n"):
            connect(port, sent, stack)
            wait_for_clients(1)
            wait_for_clients(0)


def wait_for_clients(count: int) -> None:
    """Waits until so many threads serve a client."""
    deadline_s = time.monotonic() + WAIT_S
    while sum("process_request_thread" in thread.name for thread in threading.enumerate()) != count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
