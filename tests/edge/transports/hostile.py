"""Servers that connect like a worker and then reply in invalid ways."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shared import clock
from shared.messages.clock_probes import Echo, pack_echo, unpack_probe
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.protobuf_fields import pack, unpack
from tests.support.tiny_model import CARD

grpc: Any = import_module("grpc")

STATUS = pack_status(NodeStatus(NodeState.ONLINE, "s9", 4, (CARD,)))
_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Http:
    """An HTTP reply that is sent in pieces."""

    pieces: tuple[bytes, ...]
    drips: bool = False  # Repeats the last piece until the client closes the connection.
    hangs_up: bool = False

    @classmethod
    def of(cls, status: str, body: bytes = b"", **headers: str) -> "Http":
        """Returns a complete reply."""
        fields = {
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return cls((f"HTTP/1.1 {status}\r\n{lines}\r\n".encode(), body))


def clock_reply_to(payload: bytes) -> bytes:
    """Returns the clock reply to a packed probe."""
    probe, now_ns = unpack_probe(payload), clock.now_ns()
    return pack_echo(Echo(probe.session, probe.sequence, probe.sent_ns, now_ns, now_ns, "cloud/w/s9"))


@contextmanager
def http_server(answer: Callable[[bytes], Http]) -> Iterator[str]:
    """Serves status and probe like a worker, and calls `answer` with each frame request; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()
        threads: list[threading.Thread] = []
        connections: list[socket.socket] = []

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                threads.append(threading.Thread(target=_serve, args=(connection, answer, over)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                with suppress(OSError):  # Closed already.
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def _serve(connection: socket.socket, answer: Callable[[bytes], Http], over: threading.Event) -> None:
    try:
        while request := _request(connection):
            head, _, body = request.partition(_END)
            if b"/skylane/v1/status" in head:
                reply = Http.of("200 OK", STATUS)
            elif b"/skylane/v1/probe" in head:
                reply = Http.of("200 OK", clock_reply_to(body))
            else:
                reply = answer(request)
            for piece in reply.pieces:
                connection.sendall(piece)
            if reply.hangs_up:
                return
            while reply.drips and not over.is_set():
                connection.sendall(reply.pieces[-1])
    except OSError:  # The client has closed the connection.
        pass
    finally:
        connection.close()


def _request(connection: socket.socket) -> bytes:
    data = b""
    while _END not in data:
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(_END)
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        body += piece
    return head + _END + body


@contextmanager
def grpc_server(
    answer: Callable[[bytes, Any], bytes], at: str = "127.0.0.1:0", *, compression: Any = None
) -> Iterator[str]:
    """Serves Status and Probe like a worker, and calls `answer` for frames of any service; yields the address."""

    def status(_: bytes, context: Any) -> Iterator[bytes]:
        yield pack(STATUS)
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait()

    def probe(request: bytes, _: Any) -> bytes:
        return pack(clock_reply_to(bytes(unpack(request))))

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types.
        def service(self, details: Any) -> Any:
            if details.method.endswith("/Status"):
                return grpc.unary_stream_rpc_method_handler(status)
            return grpc.unary_unary_rpc_method_handler(probe if details.method.endswith("/Probe") else answer)

    futures = import_module("concurrent.futures")
    with futures.ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, options=(("grpc.max_send_message_length", -1),), compression=compression)
        server.add_generic_rpc_handlers((Handler(),))
        port = server.add_insecure_port(at)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()
