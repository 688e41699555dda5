"""The child process behind `ops.link.link.Link`.

A request is the new specification of the link, or null; the reply contains its counts. The process ends when its standard
input is closed, also because its parent died.

It runs asyncio over select() in one thread: epoll() rounds every wait up to a millisecond, while select() waits to the
microsecond, and pieces that are due together are delivered in the order of their times, which threads would not ensure. A
connection is accepted at once, before the target is connected: only bytes are delayed.
"""

import asyncio
import json
import selectors
import signal
import socket
import struct
import sys
from collections import Counter, deque
from dataclasses import asdict
from typing import Any

from analysis.statistics.samples import spread
from ops.link.link import LinkCounts
from ops.link.timing import LinkDirection, StreamTiming
from ops.processes.child import reply, settings
from shared.network.link_spec import LinkSpec

_READ_BYTES = 1 << 16
_MAX_BUFFERED_BYTES = 8 << 20  # Per connection and direction; a faster sender waits.
_PIECE_OVERHEAD_BYTES = 200  # Memory of a piece besides its content.
_MAX_CONNECTIONS = 64
_SOCKET_BYTES = 1 << 18  # Larger kernel buffers would hide seconds of a narrow link.
_LATENESS_SAMPLES = 2000  # Computing percentiles of more samples would delay the next delivery.
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends a reset.


class Proxy:
    """Forwards connections from a listening socket to an address with the properties of `spec`."""

    def __init__(self, spec: LinkSpec, to: tuple[str, int]) -> None:
        self.to = to
        self.loop = asyncio.get_running_loop()
        self.directions = {up: LinkDirection(spec, up=up) for up in (True, False)}
        self.counted: Counter[str] = Counter()
        self.late_s: deque[float] = deque(maxlen=_LATENESS_SAMPLES)
        self._connections: dict[asyncio.Task[None], ProxiedConnection] = {}
        self._start_s = self.loop.time()
        self.set(spec)

    def set(self, spec: LinkSpec) -> None:
        """Changes the properties of the link."""
        self.spec = spec
        self._set_s = self.now_s()
        for direction in self.directions.values():
            direction.set(spec)
        for connection in self._connections.values():
            connection.schedule_reset()

    def now_s(self) -> float:
        """Seconds since the start of the link."""
        return self.loop.time() - self._start_s

    async def sleep_until(self, at_s: float) -> None:
        """Waits until a time of `now_s`."""
        if (wait_s := at_s - self.now_s()) > 0:
            await asyncio.sleep(wait_s)

    @property
    def is_half_open(self) -> bool:
        """True if the link is half open now, so that bytes are discarded."""
        after_s = self.spec.half_open_after_s
        return after_s is not None and self.now_s() >= self._set_s + after_s

    async def serve(self, listener: socket.socket) -> None:
        """Accepts connections; an unexpected exception in one of them ends the proxy."""
        async with asyncio.TaskGroup() as group:
            while True:
                near, _ = await self.loop.sock_accept(listener)
                self.counted["connections"] += 1
                if len(self._connections) >= _MAX_CONNECTIONS:
                    self.counted["refused"] += 1
                    _close(near, reset=True)
                    continue
                connection = ProxiedConnection(self, near, self.counted["connections"])
                task = connection.task = group.create_task(connection.run())
                self._connections[task] = connection
                task.add_done_callback(self._connections.pop)
                connection.schedule_reset()

    def counts(self) -> LinkCounts:
        """Returns the counts since the start."""
        late_ms = [late_s * 1e3 for late_s in self.late_s]
        late = spread(late_ms) if late_ms else {}
        return LinkCounts(
            **self.counted,
            connections_open=len(self._connections),
            late_p50_ms=late.get("median"),
            late_p99_ms=late.get("p99"),
        )


class ProxiedConnection:
    """A connection through the link: two sockets and a pipe in each direction."""

    task: "asyncio.Task[None]"

    def __init__(self, proxy: Proxy, near: socket.socket, number: int) -> None:
        self.proxy = proxy
        self.is_dead = False  # Bytes were discarded: the connection never carries bytes again.
        self._near = near
        self._number = number
        self._start_s = proxy.now_s()
        self._is_reset = False
        self._timer: asyncio.TimerHandle | None = None

    def schedule_reset(self) -> None:
        """Schedules the reset of the connection if `reset_after_s` is set."""
        if self._timer:
            self._timer.cancel()
        if (after_s := self.proxy.spec.reset_after_s) is not None:
            self._timer = self.proxy.loop.call_later(self._start_s + after_s - self.proxy.now_s(), self._reset)

    async def run(self) -> None:
        """Forwards bytes until both ends have closed, or one of them breaks."""
        far = _open_socket()
        broken = False
        try:
            _set_options(self._near)
            try:
                await self.proxy.loop.sock_connect(far, self.proxy.to)
            except OSError:
                self.proxy.counted["refused"] += 1
                broken = True
                return
            async with asyncio.TaskGroup() as group:
                for up, source, sink in ((True, self._near, far), (False, far, self._near)):
                    pipe = Pipe(self, self.proxy.directions[up], self._number, source, sink)
                    group.create_task(pipe.read())
                    group.create_task(pipe.write())
        except* OSError:
            broken = True
        finally:
            if self._timer:
                self._timer.cancel()
            for end in (self._near, far):
                _close(end, reset=broken or self._is_reset)

    def _reset(self) -> None:
        self.proxy.counted["resets"] += 1
        self._is_reset = True
        self.task.cancel()


class Pipe:
    """One direction of a connection: reads bytes, buffers them until their delivery time, and writes them."""

    def __init__(
        self,
        connection: ProxiedConnection,
        direction: LinkDirection,
        number: int,
        source: socket.socket,
        sink: socket.socket,
    ) -> None:
        self._connection = connection
        self._proxy = connection.proxy
        self._direction = direction
        self._timing = StreamTiming(direction, number, self._proxy.counted)
        self._source = source
        self._sink = sink
        self._pieces: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
        self._buffered_bytes = 0
        self._has_room = asyncio.Event()

    async def read(self) -> None:
        """Reads to the end of the stream, not faster than the link's bandwidth."""
        while data := await self._next():
            if self._discards(len(data)):
                continue
            size = self._direction.piece_bytes
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                while (wait_s := self._direction.wait_s(self._proxy.now_s())) > 0:  # noqa: ASYNC110 (only time ends the wait)
                    await asyncio.sleep(wait_s)
                # A full read buffer means that more bytes follow.
                following = len(data) - start - len(piece) + (_READ_BYTES if len(data) == _READ_BYTES else 0)
                at_s = self._timing.release_s(len(piece), following, self._proxy.now_s())
                await self._buffer(at_s, piece)
        self._pieces.put_nowait(None)

    async def write(self) -> None:
        """Writes every piece at its delivery time, and closes the sink after the last one."""
        while item := await self._pieces.get():
            at_s, piece = item
            if self._proxy.now_s() < at_s:
                await self._proxy.sleep_until(at_s)
                self._proxy.late_s.append(self._proxy.now_s() - at_s)
                self._proxy.counted["releases"] += 1
            if not self._discards(len(piece)):
                await self._send(self._timing.corrupted(piece))
            self._buffered_bytes -= len(piece) + _PIECE_OVERHEAD_BYTES
            self._has_room.set()
        if not self._discards(0):
            self._sink.shutdown(socket.SHUT_WR)

    async def _next(self) -> bytes:
        try:
            return await self._proxy.loop.sock_recv(self._source, _READ_BYTES)
        except ConnectionError:
            if self._discards(0):
                return b""
            raise

    def _discards(self, size: int) -> bool:
        """Counts and discards these bytes if the link is or was half open; returns whether they are discarded."""
        self._connection.is_dead |= self._proxy.is_half_open
        if self._connection.is_dead:
            self._proxy.counted["bytes_swallowed"] += size
        return self._connection.is_dead

    async def _buffer(self, at_s: float, piece: bytes) -> None:
        while self._buffered_bytes >= _MAX_BUFFERED_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        self._buffered_bytes += len(piece) + _PIECE_OVERHEAD_BYTES
        self._pieces.put_nowait((at_s, piece))

    async def _send(self, piece: bytes) -> None:
        size = self._proxy.spec.slice_bytes or len(piece)
        for start in range(0, len(piece), size):
            if start:
                await asyncio.sleep(0)  # Other connections must not be delayed by slices.
            await self._proxy.loop.sock_sendall(self._sink, piece[start : start + size])
        self._proxy.counted["bytes_up" if self._direction.up else "bytes_down"] += len(piece)


def main(*, spec: dict[str, Any], to: tuple[str, int], listen: tuple[str, int]) -> None:
    """Runs a link until the standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # On Ctrl-C, the parent may still request the counts.
    listener = _open_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host, port = listen
    try:
        listener.bind((host, port))
    except OSError as error:
        sys.exit(f"a link cannot listen on {host}:{port} ({error.strerror or error}): choose another port")
    listener.listen(_MAX_CONNECTIONS)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_run(LinkSpec.model_validate(spec), (to[0], to[1]), listener))


async def _run(spec: LinkSpec, to: tuple[str, int], listener: socket.socket) -> None:
    proxy = Proxy(spec, to)
    reply(listener.getsockname()[1])
    tasks = {asyncio.create_task(proxy.serve(listener)), asyncio.create_task(_handle_requests(proxy))}
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _handle_requests(proxy: Proxy) -> None:
    """Handles requests until the standard input is closed."""
    lines = asyncio.StreamReader()
    await proxy.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        if (spec := json.loads(line)) is not None:
            proxy.set(LinkSpec.model_validate(spec))
        reply(asdict(proxy.counts()))


def _open_socket() -> socket.socket:
    end = socket.socket()
    end.setblocking(False)  # noqa: FBT003 (the library's signature)
    _set_options(end)
    return end


def _set_options(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, buffer, _SOCKET_BYTES)


def _close(end: socket.socket, *, reset: bool) -> None:
    if reset:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()


if __name__ == "__main__":
    main(**settings())
