"""HTTP connections with limits on what a slow or broken peer can hold of the server."""

import asyncio
import json
import socket
import struct
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from cloud.gateway.limits import MAX_CONNECTIONS_PER_CALL
from cloud.node import CloudNode
from shared.runtime.periodic import run_round

MAX_HEAD_BYTES = 1 << 16  # Request line and headers; also any other bytes that are not part of a body.
MAX_TRAILERS = 16  # Header fields after a chunked body.
MAX_PIPELINED = 16  # Requests of one peer that wait for the response to an earlier one.
KEEP_ALIVE_S = 60

_EVICTING_SHARE = 2 / 3  # Of the limit of connections, from which a newcomer takes the place of another one.
_NO_LINGER = struct.pack("ii", 1, 0)


class HttpConnection(HttpToolsProtocol):
    """A connection as uvicorn serves it, with timeouts and limits for the peer."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        worker: CloudNode,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state={}, _loop=loop)
        self._worker = worker
        self._head_since: float | None = loop.time()  # None: no request line or headers are expected.
        self._waiting_since = loop.time()  # Since when the server waits for headers, a body, or the next request.
        self._unsent_since: float | None = None
        self._idle_bytes = 0  # Received bytes that are neither complete headers nor a body.
        self._trailers = 0

    @property
    def waiting_since(self) -> float | None:
        """The time of the event loop, in seconds, since which the server waits for this peer; None while it serves a request."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            return None
        return self._waiting_since

    def check_timeouts(self, now: float) -> None:
        """Closes the connection if its peer is too slow to send headers or to receive a response; called once per second."""
        header_timeout_s = self._worker.timeouts.header_s
        if self._head_since is not None and now - self._head_since > header_timeout_s:
            self._fail(408, f"the request line and headers were not complete after {header_timeout_s:g} s")
        if not self.transport.get_write_buffer_size():
            self._unsent_since = None
        elif self._unsent_since is None:
            self._unsent_since = now
        elif now - self._unsent_since > self._worker.timeouts.send_s:
            # Without lingering: megabytes of unsent data would otherwise stay in the kernel for minutes.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As in the base.
        """Accepts the connection; if there are too many, closes the one for which the server has waited longest."""
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, HttpConnection)]
        others = [other for other in others if not other.transport.is_closing()]
        limit = self._worker.connection_limits["http"] * _EVICTING_SHARE
        if len(others) > min(limit, MAX_CONNECTIONS_PER_CALL * self._worker.config.max_calls):
            waiting = [other for other in others if other is not self and other.waiting_since is not None]
            if waiting:
                min(waiting, key=lambda other: other.waiting_since or 0.0).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Limits the bytes that are neither headers nor a body."""
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self._waiting_since = self.loop.time()
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > MAX_HEAD_BYTES:
            self._fail(431, f"more than {MAX_HEAD_BYTES} bytes of headers")

    def on_message_begin(self) -> None:
        """Starts the header timeout of a pipelined request."""
        super().on_message_begin()
        self._trailers = 0
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Limits the number of trailers, which are ignored."""
        if self._head_since is not None:
            super().on_header(name, value)
            return
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            raise ValueError("too many trailers")

    def on_headers_complete(self) -> None:
        """Limits the number of pipelined requests, and ends the header timeout."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        self._head_since = None
        self._waiting_since = self.loop.time()
        self._idle_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Resets the count of idle bytes."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Starts to wait for the next request."""
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Responds to malformed HTTP in the same form as to all other errors."""
        self._fail(400, msg)

    def _fail(self, status: int, text: str) -> None:
        """Sends an error response and closes the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # No second response can be sent within a response.
            return
        body = json.dumps({"error": text}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class HttpListener(uvicorn.Server):
    """Accepts connections at one socket and checks their timeouts."""

    def __init__(self, config: uvicorn.Config, worker: CloudNode) -> None:
        super().__init__(config)
        self._worker = worker

    async def startup(self, sockets: Any = None) -> None:
        """Starts to accept connections."""
        loop = asyncio.get_running_loop()
        config = self.config

        def connect() -> HttpConnection:
            return HttpConnection(config, self.server_state, loop, self._worker)

        handshake_s = self._worker.timeouts.header_s if config.ssl else None
        self.servers = [
            await loop.create_server(connect, sock=sock, ssl=config.ssl, ssl_handshake_timeout=handshake_s)
            for sock in sockets
        ]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Checks the timeouts once per second; uvicorn calls this ten times as often."""
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, HttpConnection)
                run_round("http timeouts", partial(connection.check_timeouts, now))
        return await super().on_tick(counter)
