"""The simulated radio link: real TCP connections over tun devices, if this machine permits them."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from shared.network.link_spec import LinkSpec
from tests.support.faults.namespaces import Namespace
from tests.support.faults.rig import RigError

_BYTES = 200_000
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as end:
    end.sendall(bytes(int(sys.argv[3])))
    end.shutdown(socket.SHUT_WR)
    sys.exit(end.recv(1) != b"!")
"""


@pytest.fixture
def space() -> Iterator[Namespace]:
    """A separate network namespace; skips the test if this machine does not permit one."""
    with Namespace(Random(1)) as namespace:
        yield namespace


def _send(space: Namespace, timeout_s: float = 60.0) -> bool:
    """Sends bytes out of the namespace over TCP; returns whether all bytes and the reply arrived."""
    received = bytearray()

    def receive(server: socket.socket) -> None:
        try:
            end, _ = server.accept()
        except TimeoutError:
            return
        with end:
            while data := end.recv(1 << 16):
                received.extend(data)
            end.sendall(b"!")

    with socket.create_server((space.outside, 0)) as server:
        server.settimeout(timeout_s + 1)
        receiver = threading.Thread(target=receive, args=(server,))
        receiver.start()
        arguments = [space.outside, str(server.getsockname()[1]), str(_BYTES), str(timeout_s)]
        done = subprocess.run(
            [*space.wrapper, sys.executable, "-c", _SEND, *arguments], stderr=subprocess.DEVNULL, check=False
        )
        receiver.join()
    return done.returncode == 0 and len(received) == _BYTES


def test_tcp_works_over_a_perfect_link_and_a_link_with_packet_loss(space: Namespace) -> None:
    """The kernel itself retransmits lost packets, so a scenario measures real TCP and not a model of it."""
    assert _send(space)
    assert space.radio.lost == 0
    space.radio.spec = LinkSpec(delay_ms=20, loss_percent=10)
    began_s = time.monotonic()
    assert _send(space)
    assert time.monotonic() - began_s >= 6 * 0.02  # Three round trips: connect, send and reply.
    assert space.radio.lost > 0


def test_no_data_passes_while_the_device_is_down(space: Namespace) -> None:
    """Without a real interruption, every program would pass the scenario."""
    space.cut()
    assert not _send(space, timeout_s=0.5)
    space.mend()
    assert _send(space)


def test_a_dark_link_drops_all_packets_without_an_error(space: Namespace) -> None:
    """A real radio without reception also loses packets while its network device stays up."""
    space.radio.spec = LinkSpec(half_open_after_s=0)
    assert not _send(space, timeout_s=0.5)
    assert space.radio.lost > 0


def test_a_namespace_is_removed_at_the_end_of_its_block() -> None:
    """Leftover namespaces would accumulate on a machine that runs the scenarios every night."""
    with Namespace(Random(1)) as namespace:
        path = Path("/run/netns") / namespace.name
        assert path.exists()
    assert not path.exists()


def test_a_later_network_error_is_not_reported_as_unavailable(space: Namespace) -> None:
    """Otherwise a scenario that failed half-way would count as unavailable on this machine, and the run would pass."""
    with pytest.raises(RigError, match="failed"):
        space.mend()  # The routes already exist.
