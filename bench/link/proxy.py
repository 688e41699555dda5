"""The process behind `bench.link.link.Link`: `python -m bench.link.proxy SPEC TO_HOST TO_PORT LISTEN_HOST LISTEN_PORT`.

It is told and asked by lines of JSON on its standard input (`{"set": {…}}`, `{"counts": true}`), answers each with one
line on its standard output, and ends when its standard input does: when whoever started it dies.

One thread with asyncio over select(): asyncio's usual epoll() rounds every wait up to a millisecond, select() waits to
the microsecond; and pieces that are due together go in the order of their moments, which threads would not promise.
A connect is answered at once, before the far end is: only what is then said takes the link's time.
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

from bench.harness.samples import spread
from bench.link.link import LinkCounts, LinkSpec
from bench.link.timing import Lane, Stream

_READ_BYTES = 1 << 16
_HELD_BYTES = 8 << 20  # Of one connection in one direction; a sender that is faster waits.
_PIECE_COSTS = 200  # Bytes of memory beside a piece's own.
_MAX_CONNECTIONS = 64
_SOCKET_BYTES = 1 << 18  # The kernel's buffers must not hide seconds of a narrow link.
_LATENESS = 2000  # Their percentiles are made between two releases: more would make the next one late.
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends a reset.


class Proxy:
    """Carries connections from a listening socket to an address, as `spec` says."""

    def __init__(self, spec: LinkSpec, to: tuple[str, int]) -> None:
        self.to = to
        self.loop = asyncio.get_running_loop()
        self.lanes = {up: Lane(spec, up=up) for up in (True, False)}
        self.counted: Counter[str] = Counter()
        self.late_s: deque[float] = deque(maxlen=_LATENESS)
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._began_s = self.loop.time()
        self.set(spec)

    def set(self, spec: LinkSpec) -> None:
        """Be like `spec` from now on."""
        self.spec = spec
        self._set_s = self.now_s()
        for lane in self.lanes.values():
            lane.set(spec)
        for connection in self._connections.values():
            connection.age()

    def now_s(self) -> float:
        """Seconds since the link began."""
        return self.loop.time() - self._began_s

    async def sleep_until(self, at_s: float) -> None:
        """Wait for a moment of `now_s`."""
        if (wait_s := at_s - self.now_s()) > 0:
            await asyncio.sleep(wait_s)

    @property
    def is_dark(self) -> bool:
        """Whether what is sent now is swallowed."""
        after_s = self.spec.half_open_after_s
        return after_s is not None and self.now_s() >= self._set_s + after_s

    async def serve(self, listener: socket.socket) -> None:
        """Take connections, for ever. A bug in one of them ends them all."""
        async with asyncio.TaskGroup() as group:
            while True:
                near, _ = await self.loop.sock_accept(listener)
                self.counted["connections"] += 1
                if len(self._connections) >= _MAX_CONNECTIONS:
                    self.counted["refused"] += 1
                    _close(near, reset=True)
                    continue
                connection = Connection(self, near, self.counted["connections"])
                task = connection.task = group.create_task(connection.run())
                self._connections[task] = connection
                task.add_done_callback(self._connections.pop)
                connection.age()

    def counts(self) -> LinkCounts:
        """What it has done so far."""
        late_ms = [late_s * 1e3 for late_s in self.late_s]
        late = spread(late_ms) if late_ms else {}
        return LinkCounts(
            **self.counted,
            connections_open=len(self._connections),
            late_p50_ms=late.get("median"),
            late_p99_ms=late.get("p99"),
        )


class Connection:
    """A connection through the link: two sockets, and a pipe in each direction."""

    task: "asyncio.Task[None]"

    def __init__(self, proxy: Proxy, near: socket.socket, number: int) -> None:
        self.proxy = proxy
        self.is_dead = False  # It has lost something to a half-open link: its ends never hear of each other again.
        self._near = near
        self._number = number
        self._began_s = proxy.now_s()
        self._is_reset = False
        self._timer: asyncio.TimerHandle | None = None

    def age(self) -> None:
        """See to it that the connection is reset in time, where it is to be."""
        if self._timer:
            self._timer.cancel()
        if (after_s := self.proxy.spec.reset_after_s) is not None:
            self._timer = self.proxy.loop.call_later(self._began_s + after_s - self.proxy.now_s(), self._reset)

    async def run(self) -> None:
        """Carry until both ends have closed, or one of them breaks."""
        far = _socket()
        broken = False
        try:
            _set_up(self._near)
            try:
                await self.proxy.loop.sock_connect(far, self.proxy.to)
            except OSError:
                self.proxy.counted["refused"] += 1
                broken = True
                return
            async with asyncio.TaskGroup() as group:
                for up, source, sink in ((True, self._near, far), (False, far, self._near)):
                    pipe = Pipe(self, self.proxy.lanes[up], self._number, source, sink)
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
    """One direction of a connection: reads, keeps what is read until its moment, and writes it."""

    def __init__(
        self, connection: Connection, lane: Lane, number: int, source: socket.socket, sink: socket.socket
    ) -> None:
        self._connection = connection
        self._proxy = connection.proxy
        self._lane = lane
        self._stream = Stream(lane, number, self._proxy.counted)
        self._source = source
        self._sink = sink
        self._pieces: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
        self._held = 0
        self._has_room = asyncio.Event()

    async def read(self) -> None:
        """Read to the end of what its source sends, no faster than the link carries it."""
        while data := await self._next():
            if self._is_dark(len(data)):
                continue
            size = self._lane.piece_bytes
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                while (wait_s := self._lane.wait_s(self._proxy.now_s())) > 0:  # noqa: ASYNC110 (only time frees it)
                    await asyncio.sleep(wait_s)
                # A buffer that was read full has more behind it.
                following = len(data) - start - len(piece) + (_READ_BYTES if len(data) == _READ_BYTES else 0)
                at_s = self._stream.release_s(len(piece), following, self._proxy.now_s())
                await self._keep(at_s, piece)
        self._pieces.put_nowait(None)

    async def write(self) -> None:
        """Write every piece at its moment, and close when there are no more."""
        while kept := await self._pieces.get():
            at_s, piece = kept
            if self._proxy.now_s() < at_s:
                await self._proxy.sleep_until(at_s)
                self._proxy.late_s.append(self._proxy.now_s() - at_s)
                self._proxy.counted["releases"] += 1
            if not self._is_dark(len(piece)):
                await self._send(self._stream.corrupted(piece))
            self._held -= len(piece) + _PIECE_COSTS
            self._has_room.set()
        if not self._is_dark(0):
            self._sink.shutdown(socket.SHUT_WR)

    async def _next(self) -> bytes:
        try:
            return await self._proxy.loop.sock_recv(self._source, _READ_BYTES)
        except ConnectionError:
            if self._is_dark(0):
                return b""
            raise

    def _is_dark(self, size: int) -> bool:
        """Whether these bytes, or an end's last word, are swallowed, and with them all that follow on this connection."""
        self._connection.is_dead |= self._proxy.is_dark
        if self._connection.is_dead:
            self._proxy.counted["bytes_swallowed"] += size
        return self._connection.is_dead

    async def _keep(self, at_s: float, piece: bytes) -> None:
        while self._held >= _HELD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        self._held += len(piece) + _PIECE_COSTS
        self._pieces.put_nowait((at_s, piece))

    async def _send(self, piece: bytes) -> None:
        size = self._proxy.spec.slice_bytes or len(piece)
        for start in range(0, len(piece), size):
            if start:
                await asyncio.sleep(0)  # A slice more must not make another connection late.
            await self._proxy.loop.sock_sendall(self._sink, piece[start : start + size])
        self._proxy.counted["bytes_up" if self._lane.up else "bytes_down"] += len(piece)


def main(arguments: list[str]) -> int:
    """Run a link until standard input ends; returns the exit code."""
    spec, to_host, to_port, host, port = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started it, who may yet ask for the counts.
    listener = _socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
    except OSError as error:
        _say({"error": f"a link cannot listen on {host}:{port} ({error.strerror or error}): choose another port"})
        return 1
    listener.listen(_MAX_CONNECTIONS)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_run(LinkSpec.model_validate_json(spec), (to_host, int(to_port)), listener))
    return 0


async def _run(spec: LinkSpec, to: tuple[str, int], listener: socket.socket) -> None:
    proxy = Proxy(spec, to)
    _say({"port": listener.getsockname()[1]})
    tasks = {asyncio.create_task(proxy.serve(listener)), asyncio.create_task(_obey(proxy))}
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _obey(proxy: Proxy) -> None:
    """Do what standard input says, to its end."""
    lines = asyncio.StreamReader()
    await proxy.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        question: dict[str, Any] = json.loads(line)
        if "set" in question:
            proxy.set(LinkSpec.model_validate(question["set"]))
        _say(asdict(proxy.counts()))


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _socket() -> socket.socket:
    end = socket.socket()
    end.setblocking(False)  # noqa: FBT003 (the library's signature)
    _set_up(end)
    return end


def _set_up(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, buffer, _SOCKET_BYTES)


def _close(end: socket.socket, *, reset: bool) -> None:
    if reset:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
