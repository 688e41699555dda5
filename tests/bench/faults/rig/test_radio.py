"""The radio: real TCP over devices of our own, where this machine lets us have them."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bench.faults.rig.namespaces import Namespace
from bench.faults.rig.radio import Air
from bench.faults.rig.rig import RigError
from bench.faults.scenario import UnavailableError

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
    """A network of its own."""
    try:
        made = Namespace(Random(1))
    except UnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


def _send(space: Namespace, patience_s: float = 60.0) -> bool:
    """Send from within to this machine over TCP; whether all came and the answer went back."""
    came = bytearray()

    def receive(server: socket.socket) -> None:
        try:
            end, _ = server.accept()
        except TimeoutError:
            return
        with end:
            while data := end.recv(1 << 16):
                came.extend(data)
            end.sendall(b"!")

    with socket.create_server((space.outside, 0)) as server:
        server.settimeout(patience_s + 1)
        receiver = threading.Thread(target=receive, args=(server,))
        receiver.start()
        arguments = [space.outside, str(server.getsockname()[1]), str(_BYTES), str(patience_s)]
        done = subprocess.run(
            [*space.wrapper, sys.executable, "-c", _SEND, *arguments], stderr=subprocess.DEVNULL, check=False
        )
        receiver.join()
    return done.returncode == 0 and len(came) == _BYTES


def test_tcp_crosses_good_air_and_air_that_loses_packets(space: Namespace) -> None:
    """The kernel sends again what was lost: nothing is modelled."""
    assert _send(space)
    assert space.radio.lost == 0
    space.radio.air = Air(delay_s=0.02, loss=0.1)
    began_s = time.monotonic()
    assert _send(space)
    assert time.monotonic() - began_s >= 6 * 0.02  # To connect, to send and to hear back, there and back each.
    assert space.radio.lost > 0


def test_nothing_crosses_while_the_device_is_down(space: Namespace) -> None:
    """A fault that is not there would be survived by anybody."""
    space.cut()
    assert not _send(space, patience_s=0.5)
    space.mend()
    assert _send(space)


def test_dark_air_swallows_all_and_tells_nobody(space: Namespace) -> None:
    """As a radio does behind a hill."""
    space.radio.air = Air(is_dark=True)
    assert not _send(space, patience_s=0.5)
    assert space.radio.lost > 0


def test_a_namespace_is_gone_with_its_block() -> None:
    """A bench that leaves networks behind fills the machine of whoever plays it every night."""
    try:
        made = Namespace(Random(1))
    except UnavailableError as error:
        pytest.skip(str(error))
    mark = Path("/run/netns") / made.name
    with made:
        assert mark.exists()
    assert not mark.exists()


def test_a_network_that_fails_later_is_no_want_of_rights(space: Namespace) -> None:
    """A scenario that broke half-way would be told as one that this machine cannot play, and be green."""
    with pytest.raises(RigError, match="failed"):
        space.mend()  # Its routes are there already.
