import os
import queue
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.link.link import PROFILES, Link, LinkCounts, LinkError, LinkSpec
from shared.broker.broker import Broker
from shared.config import ConfigError, validate
from shared.encoding.compression import Buffer
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address

WAIT_S = 60.0
BULK = random.Random(1).randbytes(300_000)


class Far:
    """What a link leads to: it keeps every connection it is given."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []

    def accept(self) -> socket.socket:
        """The next connection that comes out of the link."""
        end, _ = self._listener.accept()
        end.settimeout(WAIT_S)
        self._ends.append(end)
        return end

    def close(self) -> None:
        """Close all."""
        for end in (self._listener, *self._ends):
            end.close()


@pytest.fixture
def far() -> Iterator[Far]:
    """A listening socket."""
    with closing(Far()) as server:
        yield server


@pytest.fixture
def linked(far: Far) -> Iterator[Callable[[LinkSpec], Link]]:
    """Starts links to `far`."""
    started: list[Link] = []

    def start(spec: LinkSpec) -> Link:
        started.append(Link(spec, "127.0.0.1", far.port, answer_s=WAIT_S))
        return started[-1]

    yield start
    for link in started:
        link.close()


@pytest.fixture
def near() -> Iterator[Callable[[Link], socket.socket]]:
    """Connects to links."""
    ends: list[socket.socket] = []

    def connect(link: Link) -> socket.socket:
        ends.append(socket.create_connection((link.host, link.port), WAIT_S))
        return ends[-1]

    yield connect
    for end in ends:
        end.close()


Start = Callable[[LinkSpec], Link]
Connect = Callable[[Link], socket.socket]


def received(end: socket.socket, size: int) -> bytes:
    """So many bytes, or all until the other side closes."""
    data = bytearray()
    while len(data) < size and (part := end.recv(1 << 16)):
        data += part
    return bytes(data)


def counted(link: Link, until: Callable[[LinkCounts], bool]) -> LinkCounts:
    """The counts as soon as they are so; each look waits for the link's own answer."""
    deadline = time.monotonic() + WAIT_S
    while not until(counts := link.counts()):
        assert time.monotonic() < deadline, counts
    return counts


def is_silent(end: socket.socket) -> bool:
    """Whether nothing has come, neither bytes nor an end."""
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
def test_every_byte_comes_out_once_and_in_order(spec: LinkSpec, far: Far, linked: Start, near: Connect) -> None:
    """The link takes time and nothing else: MQTT must see the stream it would see without."""
    link = linked(spec)
    here = near(link)
    there = far.accept()
    for one, other in ((here, there), (there, here)):
        sender = threading.Thread(target=one.sendall, args=(BULK,))
        sender.start()
        assert received(other, len(BULK)) == BULK
        sender.join(WAIT_S)
    here.shutdown(socket.SHUT_WR)
    assert received(there, 1) == b""
    there.close()
    assert received(here, 1) == b""
    counts = counted(link, lambda counts: not counts.connections_open)
    assert (counts.bytes_up, counts.bytes_down) == (link.bytes_up, link.bytes_down) == (len(BULK), len(BULK))
    assert counts.connections == 1


def test_a_round_trip_takes_at_least_its_delays(far: Far, linked: Start, near: Connect) -> None:
    """A released byte is never early: known delays are what the clock bound is tried against."""
    link = linked(LinkSpec(delay_up_ms=30, delay_down_ms=10))
    here = near(link)
    there = far.accept()
    began_ns = time.perf_counter_ns()
    here.sendall(b"ping")
    there.sendall(received(there, 4))
    assert received(here, 4) == b"ping"
    assert time.perf_counter_ns() - began_ns >= 40_000_000
    counts = link.counts()
    assert counts.releases == 2
    assert counts.late_p50_ms is not None
    assert counts.late_p50_ms >= 0


def test_a_half_open_link_swallows_and_tells_nobody(far: Far, linked: Start, near: Connect) -> None:
    """A vehicle in a tunnel: no end hears of it. What lost bytes stays dead; what connects afterwards is well."""
    link = linked(LinkSpec())
    here = near(link)
    there = far.accept()
    link.set(LinkSpec(half_open_after_s=0))
    here.sendall(b"lost")
    there.sendall(b"lost")
    counted(link, lambda counts: counts.bytes_swallowed == 8)
    link.set(LinkSpec())
    here.sendall(b"more")
    counted(link, lambda counts: counts.bytes_swallowed == 12)
    here.close()
    fresh = near(link)
    fresh.sendall(b"ping")
    assert received(far.accept(), 4) == b"ping"
    assert is_silent(there)
    assert link.counts().connections_open == 2


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_half_open_link_tells_of_no_end(far: Far, linked: Start, near: Connect, *, reset: bool) -> None:
    """Not even where the end is all that there is to tell: a broker that dies meanwhile is silent like any other."""
    link = linked(LinkSpec())
    here = near(link)
    there = far.accept()
    link.set(LinkSpec(half_open_after_s=0))
    if reset:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    there.close()
    for _ in range(3):  # It answers after it has looked at what came before.
        link.counts()
    here.sendall(b"lost")
    counted(link, lambda counts: counts.bytes_swallowed == 4)
    assert is_silent(here)
    assert link.counts().connections_open == 1


def test_connections_are_reset_at_their_age(far: Far, linked: Start, near: Connect) -> None:
    """A reset is not a close: what was under way is gone, and both ends are told so."""
    link = linked(LinkSpec(delay_ms=1000))
    here = near(link)
    there = far.accept()
    here.sendall(b"under way")
    link.set(LinkSpec(delay_ms=1000, reset_after_s=0))
    for end in (here, there):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    counted(link, lambda counts: counts.resets == 1 and not counts.connections_open)


def test_a_connection_that_breaks_on_one_side_breaks_on_the_other(far: Far, linked: Start, near: Connect) -> None:
    """A broker that is killed must look killed through the link too."""
    link = linked(LinkSpec())
    here = near(link)
    there = far.accept()
    there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    there.close()
    with pytest.raises(ConnectionResetError):
        here.recv(1)


def test_the_same_seed_flips_the_same_bits(far: Far, linked: Start, near: Connect) -> None:
    """What a corrupted message breaks must be broken again by the same command."""
    data = bytes(200_000)
    came = []
    for seed in (3, 3, 4):
        link = linked(LinkSpec(corrupt_per_mb=100, seed=seed))
        here = near(link)
        there = far.accept()
        sender = threading.Thread(target=here.sendall, args=(data,))
        sender.start()
        came.append(received(there, len(data)))
        sender.join(WAIT_S)
        assert link.counts().bits_flipped == int.from_bytes(came[-1]).bit_count() > 0
    assert came[0] == came[1] != came[2]


def test_a_sender_that_nobody_reads_is_kept_waiting(far: Far, linked: Start, near: Connect) -> None:
    """The proxy's memory stays bounded when the broker is frozen."""
    here = near(linked(LinkSpec()))
    far.accept()
    here.settimeout(1.0)  # Silence for so long: the pipe is full.
    room = 32 << 20
    with pytest.raises(TimeoutError):
        here.sendall(bytes(room))


def test_nobody_at_the_far_end_is_a_reset(linked: Start, near: Connect, far: Far) -> None:
    """A broker that is down must not look like one that is slow."""
    link = linked(LinkSpec())
    far.close()
    with pytest.raises(ConnectionResetError):
        near(link).recv(1)
    counted(link, lambda counts: counts.refused == 1)


def test_the_number_of_connections_is_bounded(linked: Start, near: Connect) -> None:
    """Each may hold some memory; a client that reconnects in a loop must not take all of it."""
    link = linked(LinkSpec())
    for _ in range(65):
        near(link)
    assert counted(link, lambda counts: counts.connections == 65).refused == 1


def test_a_taken_port_is_said(linked: Start) -> None:
    """`skylane bench link` runs beside brokers and other links."""
    taken = linked(LinkSpec())
    with pytest.raises(LinkError, match=rf"cannot listen on 127.0.0.1:{taken.port} .*: choose another port"):
        Link(LinkSpec(), "127.0.0.1", 1, taken.port)


def test_it_ends_with_its_block_and_keeps_its_counts(far: Far) -> None:
    """A proxy left over would keep a port and a core; its counts go into the study after it."""
    with Link(LinkSpec(), "127.0.0.1", far.port) as link, socket.create_connection((link.host, link.port)) as here:
        here.sendall(b"ping")
        assert received(far.accept(), 4) == b"ping"
    with pytest.raises(ProcessLookupError):
        os.kill(link.pid, 0)
    assert link.bytes_up == 4
    with pytest.raises(LinkError, match="is gone"):
        link.set(LinkSpec())


def test_it_ends_with_whoever_started_it(linked: Start) -> None:
    """A study that is killed leaves no proxy behind: its end of the pipe closes, whatever it died of."""
    link = linked(LinkSpec())
    assert link._process.stdin is not None
    link._process.stdin.close()
    assert link._process.wait(WAIT_S) == 0


def test_an_unknown_fault_is_refused_by_name(tmp_path: Path) -> None:
    """A study's link is written by hand; a misspelt key must not be a link without fault."""
    with pytest.raises(ConfigError, match="did you mean delay_ms"):
        validate(tmp_path / "s.yaml", {"delay_msec": 5}, LinkSpec)


def test_profiles_get_better_by_generation() -> None:
    """The figures stand in studies by their names."""
    assert PROFILES["none"] == LinkSpec()
    slow, fast = PROFILES["4g"], PROFILES["5g"]
    assert slow.round_trip_s > fast.round_trip_s > 0
    for up in (True, False):
        assert (slow.bytes_per_s(up=up) or 0) < (fast.bytes_per_s(up=up) or 0)


@pytest.mark.mosquitto
def test_mqtt_goes_through_and_comes_back_after_a_reset(mosquitto_broker: Broker) -> None:
    """What the link is for: a node takes it for its broker, in pieces that no packet fits, and through a break."""
    came: queue.Queue[Buffer] = queue.Queue()
    connected: queue.Queue[None] = queue.Queue()
    listener = mosquitto_broker.listener
    with Link(LinkSpec(delay_ms=2, jitter_ms=1, slice_bytes=7), listener.host, listener.port) as link:
        with MqttBus(Address.parse(link.url), "linked", on_connected=lambda: connected.put(None)) as bus:
            connected.get(timeout=WAIT_S)
            bus.subscribe("link/test", 1, lambda delivery: came.put(delivery.payload))
            bus.publish("link/test", BULK, qos=1)
            assert came.get(timeout=WAIT_S) == BULK
            link.set(LinkSpec(reset_after_s=0))
            counted(link, lambda counts: counts.resets > 0)
            link.set(LinkSpec())
            connected.get(timeout=WAIT_S)
            bus.publish("link/test", b"again", qos=1)
            assert came.get(timeout=WAIT_S) == b"again"
        assert link.bytes_up > len(BULK) < link.bytes_down


def test_a_link_that_stands_still_holds_nobody_up(far: Far) -> None:
    """A fault bench stops processes: it must not stop with them, and what it said late is not taken for an answer."""
    with Link(LinkSpec(), "127.0.0.1", far.port, answer_s=0.2) as link:
        os.kill(link.pid, signal.SIGSTOP)
        try:
            assert link.counts().connections == 0
            with pytest.raises(LinkError, match=r"has not answered for 0.2 s: does it stand still\?"):
                link.set(LinkSpec(delay_ms=1))
        finally:
            os.kill(link.pid, signal.SIGCONT)
        with closing(socket.create_connection((link.host, link.port), WAIT_S)):
            far.accept()
            counted(link, lambda counts: counts.connections == 1)
