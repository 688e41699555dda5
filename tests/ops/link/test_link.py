import json
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from ops.broker.broker import Broker
from ops.link.link import Link, LinkCounts
from ops.processes.child import BenchError
from shared.compression import Buffer
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from shared.network.link_spec import LinkSpec

WAIT_S = 60.0
BULK = random.Random(1).randbytes(300_000)


Start = Callable[[LinkSpec], Link]
Connect = Callable[[Link], socket.socket]
Ends = tuple[Link, socket.socket, socket.socket]  # A link, and both sides of a connection through it.
Open = Callable[[LinkSpec], Ends]


class Target:
    """The target of a link; keeps every connection open."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []

    def accept(self) -> socket.socket:
        """Accepts the next connection of the link."""
        end, _ = self._listener.accept()
        end.settimeout(WAIT_S)
        self._ends.append(end)
        return end

    def close(self) -> None:
        """Closes all sockets."""
        for end in (self._listener, *self._ends):
            end.close()


@pytest.fixture
def target() -> Iterator[Target]:
    """The target of a link."""
    with closing(Target()) as server:
        yield server


@pytest.fixture
def linked(target: Target) -> Iterator[Start]:
    """Starts links to `target`."""
    with ExitStack() as stack:

        def start(spec: LinkSpec) -> Link:
            link = Link(spec, "127.0.0.1", target.port, reply_timeout_s=WAIT_S)
            stack.callback(link.close)
            return link

        yield start


@pytest.fixture
def near() -> Iterator[Connect]:
    """Connects to links."""
    with ExitStack() as stack:
        yield lambda link: stack.enter_context(socket.create_connection((link.host, link.port), WAIT_S))


@pytest.fixture
def ends(target: Target, linked: Start, near: Connect) -> Open:
    """Starts a link, and opens a connection through it."""

    def start(spec: LinkSpec) -> Ends:
        link = linked(spec)
        return link, near(link), target.accept()

    return start


def received(end: socket.socket, size: int) -> bytes:
    """Reads `size` bytes, or all until the other side closes."""
    data = bytearray()
    while len(data) < size and (part := end.recv(1 << 16)):
        data += part
    return bytes(data)


def counted(link: Link, until: Callable[[LinkCounts], bool]) -> LinkCounts:
    """Returns the counts as soon as the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not until(counts := link.counts()):
        assert time.monotonic() < deadline, counts
    return counts


def is_silent(end: socket.socket) -> bool:
    """Returns whether a connection is still open and has received no bytes."""
    end.settimeout(0)
    try:
        end.recv(1)
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize(
    "spec",
    [
        LinkSpec(),
        LinkSpec(delay_ms=5, jitter_ms=2),
        LinkSpec(bandwidth_mbps=50, slice_bytes=700),
        LinkSpec(loss_percent=2, delay_ms=1, jitter_ms=1, bandwidth_mbps=100),
    ],
    ids=["no fault", "jitter", "slices", "loss"],
)
def test_every_byte_arrives_once_and_in_order(spec: LinkSpec, ends: Open) -> None:
    """A link without corruption only delays bytes."""
    link, client, server = ends(spec)
    for one, other in ((client, server), (server, client)):
        sender = threading.Thread(target=one.sendall, args=(BULK,))
        sender.start()
        assert received(other, len(BULK)) == BULK
        sender.join(WAIT_S)
    client.shutdown(socket.SHUT_WR)
    assert received(server, 1) == b""
    server.close()
    assert received(client, 1) == b""
    counts = counted(link, lambda counts: not counts.connections_open)
    assert (counts.bytes_up, counts.bytes_down) == (len(BULK), len(BULK))
    assert counts.connections == 1


def test_a_round_trip_takes_at_least_its_delays(ends: Open) -> None:
    """Bytes are never early: the check of the clock's error bound relies on these delays."""
    link, client, server = ends(LinkSpec(delay_up_ms=30, delay_down_ms=10))
    begin_ns = time.perf_counter_ns()
    client.sendall(b"ping")
    server.sendall(received(server, 4))
    assert received(client, 4) == b"ping"
    assert time.perf_counter_ns() - begin_ns >= 40_000_000
    counts = link.counts()
    assert counts.releases == 2
    assert counts.late_p50_ms is not None
    assert counts.late_p50_ms >= 0


def test_a_half_open_link_discards_bytes_silently(target: Target, ends: Open, near: Connect) -> None:
    """This simulates a tunnel: a connection that lost bytes stays dead, and a later connection works."""
    link, client, server = ends(LinkSpec())
    link.set(LinkSpec(half_open_after_s=0))
    client.sendall(b"lost")
    server.sendall(b"lost")
    counted(link, lambda counts: counts.bytes_swallowed == 8)
    link.set(LinkSpec())
    client.sendall(b"more")
    counted(link, lambda counts: counts.bytes_swallowed == 12)
    client.close()
    fresh = near(link)
    fresh.sendall(b"ping")
    assert received(target.accept(), 4) == b"ping"
    assert is_silent(server)
    assert link.counts().connections_open == 2


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_half_open_link_hides_the_end_of_a_connection(ends: Open, *, reset: bool) -> None:
    """A broker that dies while the link is half open looks silent."""
    link, client, server = ends(LinkSpec())
    link.set(LinkSpec(half_open_after_s=0))
    if reset:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    for _ in range(3):  # The proxy handles earlier events before it replies.
        link.counts()
    client.sendall(b"lost")
    counted(link, lambda counts: counts.bytes_swallowed == 4)
    assert is_silent(client)
    assert link.counts().connections_open == 1


def test_connections_are_reset_at_their_age(ends: Open) -> None:
    """A reset discards bytes in transit, and both ends notice it."""
    link, client, server = ends(LinkSpec(delay_ms=1000))
    client.sendall(b"under way")
    link.set(LinkSpec(delay_ms=1000, reset_after_s=0))
    for end in (client, server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    counted(link, lambda counts: counts.resets == 1 and not counts.connections_open)


def test_a_connection_that_breaks_on_one_side_breaks_on_the_other(ends: Open) -> None:
    """A killed broker must look killed through the link as well."""
    _, client, server = ends(LinkSpec())
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    server.close()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_the_same_seed_flips_the_same_bits(ends: Open) -> None:
    """A bug found with a corrupted message must be reproducible."""
    data = bytes(200_000)
    outputs = []
    for seed in (3, 3, 4):
        link, client, server = ends(LinkSpec(corrupt_per_mb=100, seed=seed))
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        outputs.append(received(server, len(data)))
        sender.join(WAIT_S)
        assert link.counts().bits_flipped == int.from_bytes(outputs[-1]).bit_count() > 0
    assert outputs[0] == outputs[1] != outputs[2]


def test_a_sender_waits_if_the_target_does_not_read(ends: Open) -> None:
    """The proxy's memory stays bounded when the broker is frozen."""
    _, client, _ = ends(LinkSpec())
    client.settimeout(1.0)  # No progress for a second: the pipe is full.
    size = 32 << 20
    with pytest.raises(TimeoutError):
        client.sendall(bytes(size))


def test_a_target_that_does_not_listen_causes_a_reset(linked: Start, near: Connect, target: Target) -> None:
    """A broker that is down must not look slow."""
    link = linked(LinkSpec())
    target.close()
    with pytest.raises(ConnectionResetError):
        near(link).recv(1)
    counted(link, lambda counts: counts.refused == 1)


def test_the_number_of_connections_is_limited(linked: Start, near: Connect) -> None:
    """A client that reconnects in a loop must not exhaust the memory."""
    link = linked(LinkSpec())
    for _ in range(65):
        near(link)
    assert counted(link, lambda counts: counts.connections == 65).refused == 1


def test_a_port_in_use_is_reported(linked: Start) -> None:
    """`skylane link` may run next to brokers and other links."""
    taken = linked(LinkSpec())
    with pytest.raises(BenchError, match=rf"cannot listen on 127.0.0.1:{taken.port} .*: choose another port"):
        Link(LinkSpec(), "127.0.0.1", 1, taken.port)


def test_a_link_ends_with_its_block_and_keeps_its_counts(target: Target) -> None:
    """A study reads the counts after the end of the link."""
    with Link(LinkSpec(), "127.0.0.1", target.port) as link, socket.create_connection((link.host, link.port)) as client:
        client.sendall(b"ping")
        assert received(target.accept(), 4) == b"ping"
    with pytest.raises(ProcessLookupError):
        os.kill(link.pid, 0)
    assert link.counts().bytes_up == 4
    with pytest.raises(BenchError, match="has ended"):
        link.set(LinkSpec())


def test_the_proxy_ends_with_its_parent() -> None:
    """The death of the parent closes the standard input of the proxy."""
    settings = {"spec": {}, "to": ("127.0.0.1", 1), "listen": ("127.0.0.1", 0)}
    command = [sys.executable, "-m", "ops.link.proxy", json.dumps(settings)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


@pytest.mark.mosquitto
def test_mqtt_passes_through_a_link_and_reconnects_after_a_reset(mosquitto_broker: Broker) -> None:
    """A node connects to the link instead of the broker; pieces of 7 bytes split every packet."""
    received_payloads: queue.Queue[Buffer] = queue.Queue()
    connected: queue.Queue[None] = queue.Queue()
    listener = mosquitto_broker.listener
    with Link(LinkSpec(delay_ms=2, jitter_ms=1, slice_bytes=7), listener.host, listener.port) as link:
        with MqttBus(Address.parse(link.url), "linked", on_connected=lambda: connected.put(None)) as bus:
            connected.get(timeout=WAIT_S)
            bus.subscribe("link/test", 1, lambda delivery: received_payloads.put(delivery.payload))
            bus.publish("link/test", BULK, qos=1)
            assert received_payloads.get(timeout=WAIT_S) == BULK
            link.set(LinkSpec(reset_after_s=0))
            counted(link, lambda counts: counts.resets > 0)
            link.set(LinkSpec())
            connected.get(timeout=WAIT_S)
            bus.publish("link/test", b"again", qos=1)
            assert received_payloads.get(timeout=WAIT_S) == b"again"
        assert min(link.counts().bytes_up, link.counts().bytes_down) > len(BULK)


def test_a_stopped_link_times_out_and_recovers(target: Target) -> None:
    """A fault scenario stops the proxy: requests must time out, and late replies must not be taken for later ones."""
    with Link(LinkSpec(), "127.0.0.1", target.port, reply_timeout_s=0.2) as link:
        os.kill(link.pid, signal.SIGSTOP)
        try:
            assert link.counts().connections == 0
            with pytest.raises(BenchError, match=r"did not reply within 0.2 s: is it stopped\?"):
                link.set(LinkSpec(delay_ms=1))
        finally:
            os.kill(link.pid, signal.SIGCONT)
        with closing(socket.create_connection((link.host, link.port), WAIT_S)):
            target.accept()
            counted(link, lambda counts: counts.connections == 1)
