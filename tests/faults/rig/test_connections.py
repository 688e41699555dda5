"""Connections that are read from the kernel and from a broker's log."""

import os
import socket
from pathlib import Path

import pytest

from tests.support.faults.connections import established, reconnects
from tests.support.faults.rig import RigError


def test_a_connection_is_listed_only_while_it_is_established() -> None:
    """A vehicle that detects a dead link closes its connection; a scenario measures the time until then."""
    before = established(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            assert len(established(os.getpid()) - before) == 2
            client.close()
            assert len(established(os.getpid()) - before) == 0  # The other end has received the FIN packet.
    assert established(os.getpid()) == before


def test_all_connections_of_one_client_are_counted_and_those_of_other_clients_are_not(tmp_path: Path) -> None:
    """Client ids end in a random part, and another vehicle's name may begin with the same letters."""
    log = tmp_path / "broker.log"
    log.write_text(
        "1: New connection from 127.0.0.1:1 on port 1883.\n"
        "1: New client connected from 127.0.0.1:1 as skylane-vehicle-car-1-0a1b (p5, c1, k15).\n"
        "2: New client connected from 127.0.0.1:2 as skylane-vehicle-car-1-0a1b (p5, c1, k15, u'car-1').\n"
        "3: New client connected from 127.0.0.1:3 as skylane-vehicle-car-1 (p5, c1, k15).\n"
        "4: New client connected from 127.0.0.1:4 as skylane-vehicle-car-11-2c3d (p5, c1, k15).\n"
        "5: Client skylane-vehicle-car-1-0a1b disconnected.\n"
    )
    assert reconnects(log, "skylane-vehicle-car-1") == 2
    with pytest.raises(RigError, match="has no connection"):  # A count of -1 would hold a limit of 0.
        reconnects(log, "skylane-vehicle-car-2")
