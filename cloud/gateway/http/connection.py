"""An HTTP connection: what one peer may hold of the server, however slow or broken it is."""

import asyncio
import json
import socket
import struct
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD_BYTES = 1 << 16  # Of a request's line and headers; and of any stretch that brings no body.
MAX_TRAILERS = 16  # Headers behind a body in chunks.
MAX_PIPELINED = 16  # Requests of one peer that wait for the answer to the one before.
KEEP_ALIVE_S = 60

_NO_LINGER = struct.pack("ii", 1, 0)


class Connection(HttpToolsProtocol):
    """One peer's connection, as uvicorn serves it, with bounds on all that the peer can hold back or pile up."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        *,
        most: int,
        header_timeout_s: float,
        answer_s: float,
    ) -> None:
        """`most`: connections at a time.

        `header_timeout_s`: within which the first byte, and from it the headers, must come. `answer_s`: within which an answer
        must have been taken.
        """
        super().__init__(config=config, server_state=server_state, app_state={}, _loop=loop)
        self._most = most
        self._head_s = header_timeout_s
        self._answer_s = answer_s
        self._head_since: float | None = loop.time()  # None: no head is awaited or under way.
        self._waits_since = loop.time()  # For the peer: for its head, its body, or its next request.
        self._unsent_since: float | None = None
        self._idle_bytes = 0  # That came and were neither a whole head nor body.
        self._trailers = 0

    @property
    def is_ending(self) -> bool:
        """Whether it is being closed."""
        return self.transport.is_closing()

    @property
    def waits_since(self) -> float | None:
        """Since when the server waits for this peer; None while the peer waits for the server."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            return None
        return self._waits_since

    def look(self, now: float) -> None:
        """End the connection where its peer is too slow; called about once a second."""
        if self._head_since is not None and now - self._head_since > self._head_s:
            self._refuse(408, f"no whole request head within {self._head_s:g} s")
        if not self.transport.get_write_buffer_size():
            self._unsent_since = None
        elif self._unsent_since is None:
            self._unsent_since = now
        elif now - self._unsent_since > self._answer_s:
            # Without a farewell: what lies unsent in the kernel, megabytes, would else wait for the peer for minutes.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As in the base.
        """Of too many connections, the one that has kept the server waiting for longest is ended."""
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, Connection) and not other.is_ending]
        if len(others) > self._most:
            waiting = [other for other in others if other.waits_since is not None]
            min(waiting, key=lambda other: other.waits_since or 0.0).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self._waits_since = self.loop.time()
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"more than {MAX_HEAD_BYTES} bytes of headers")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._trailers = 0
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or behind the body a trailer, came."""
        if self._head_since is not None:
            super().on_header(name, value)
            return
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            raise ValueError("too many trailers")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests that wait")
        self._head_since = None
        self._waits_since = self.loop.time()
        self._idle_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body came."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """An answer has been given; the next request may come."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the form of all errors."""
        self._refuse(400, msg)

    def _refuse(self, status: int, text: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # Within an answer no other can be given.
            return
        body = json.dumps({"error": text}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class Listener(uvicorn.Server):
    """Serves connections from one socket, and looks after them."""

    def __init__(self, config: uvicorn.Config, *, most: int, header_timeout_s: float, answer_s: float) -> None:
        """See Connection."""
        super().__init__(config)
        self._head_s = header_timeout_s
        self._bounds = {"header_timeout_s": header_timeout_s, "answer_s": answer_s}
        self._most = most

    async def startup(self, sockets: Any = None) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        config = self.config

        def connection() -> Connection:
            return Connection(config, self.server_state, loop, most=self._most, **self._bounds)

        handshake_s = self._head_s if config.ssl else None
        self.servers = [
            await loop.create_server(connection, sock=sock, ssl=config.ssl, ssl_handshake_timeout=handshake_s)
            for sock in sockets
        ]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Connection)
                connection.look(now)
        return await super().on_tick(counter)
