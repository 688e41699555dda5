"""`skylane status` with the certificates of the roles."""

import json
from pathlib import Path
from typing import Any

import pytest

from ops.broker.broker import Broker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from tests.ops.fleet.made_fleet import run_status

pytestmark = pytest.mark.mosquitto


def look(secured: Broker, certs: Path, name: str) -> Any:
    """Returns the fleet as the holder of a certificate sees it."""
    ended = run_status(secured.url, "--certs", str(certs), "--name", name, "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.output)


def test_a_viewer_sees_workers_broker_and_certificates(secured: Broker, certs: Path) -> None:
    """A vehicle's certificate opens the connection too; what it may not see is not shown as missing in silence."""
    settings = NullWorkerSettings(worker="worker-1", height=48, width=64, certs=certs)
    with NullWorkerProcess(secured.url, settings):
        state, blind = look(secured, certs, "vera"), look(secured, certs, "car-1")
    (row,) = (row for row in state["workers"] if row["name"] == "worker-1")
    assert (row["problems"], row["state"]) == ([], "online")
    assert "mosquitto" in state["broker"]["version"]
    assert {"broker", "vera.crt"} <= state["certificate_days"].keys()
    assert all(0 < days <= 3660 for days in state["certificate_days"].values())
    soon = "the certificate "  # Those of the tests are valid for a day.
    assert [each for each in state["problems"] if not each.startswith(soon)] == []
    assert any(each.startswith(soon) for each in state["problems"])
    assert [each for each in blind["problems"] if not each.startswith(soon)] == [
        "no reports arrive: a secured broker sends them to viewers and operators only, see --name"
    ]


def test_without_its_certificate_the_file_is_named(secured: Broker, certs: Path) -> None:
    """A viewer of another name, and a broker that nobody runs."""
    ended = run_status(secured.url, "--certs", str(certs), "--name", "nobody")
    assert "nobody" in str(ended.exception)
    ended = run_status("mqtts://localhost:1", "--certs", str(certs), "--name", "vera", "--connect-timeout", "0.3")
    assert "no broker at mqtts://localhost:1" in str(ended.exception)
