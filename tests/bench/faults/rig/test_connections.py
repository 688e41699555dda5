"""What the kernel and a broker's log tell of connections."""

import os
import socket
from pathlib import Path

import pytest

from bench.faults.rig.connections import connects, established, reconnects
from bench.faults.rig.rig import RigError


def test_a_connection_is_seen_while_it_stands() -> None:
    """A vehicle notices a dead link when it closes its connection: that moment is the figure."""
    before = established(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        taken, _ = server.accept()
        with taken:
            assert len(established(os.getpid()) - before) == 2
            client.close()
            assert len(established(os.getpid()) - before) == 0  # The other end has heard that it is over.
    assert established(os.getpid()) == before


def test_every_time_that_a_client_came_is_counted_and_no_other_client(tmp_path: Path) -> None:
    """Ids have a part that nobody can guess; another vehicle's name may begin like ours."""
    log = tmp_path / "broker.log"
    log.write_text(
        "1: New connection from 127.0.0.1:1 on port 1883.\n"
        "1: New client connected from 127.0.0.1:1 as skylane-vehicle-car-1-0a1b (p5, c1, k15).\n"
        "2: New client connected from 127.0.0.1:2 as skylane-vehicle-car-1-0a1b (p5, c1, k15, u'car-1').\n"
        "3: New client connected from 127.0.0.1:3 as skylane-vehicle-car-1 (p5, c1, k15).\n"
        "4: New client connected from 127.0.0.1:4 as skylane-vehicle-car-11-2c3d (p5, c1, k15).\n"
        "5: Client skylane-vehicle-car-1-0a1b disconnected.\n"
    )
    assert connects(log, "skylane-vehicle-car-1") == 3
    assert reconnects(log, "skylane-vehicle-car-1") == 2
    with pytest.raises(RigError, match="has no connection"):  # Less than none would pass for none.
        reconnects(log, "skylane-vehicle-car-2")
