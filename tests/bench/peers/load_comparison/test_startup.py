from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.peers.clients.client import PeerError
from bench.peers.load_comparison.plan import Plan
from bench.peers.load_comparison.startup import LineUp
from bench.peers.rig import network
from bench.peers.rig.starter import Starter
from bench.peers.rig.workload import Job


def _line_up(folder: Path, job: Job) -> LineUp:
    starter = Starter(Plan(folder / "bag", folder / "models"), job, folder)
    return LineUp(starter, [], 1.0, ExitStack())


def test_a_peer_without_an_environment_is_skipped_with_the_reason(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most machines have only some of the environments; the peers that have one are still measured."""
    monkeypatch.chdir(tmp_path)
    line_up = _line_up(tmp_path, job)
    with pytest.raises(
        PeerError, match=r"no server to measure: litserve: no environment in .*; triton: no environment"
    ):
        line_up.start({"litserve": None, "triton": None}, lambda _: None)
    assert list(line_up.skipped) == ["litserve", "triton"]


def test_a_server_on_all_addresses_runs_only_in_its_own_network(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray has no authentication, and runs any code that it receives."""
    monkeypatch.delenv(network.VARIABLE, raising=False)
    with pytest.raises(PeerError, match="ray: it listens on every address of the machine: run as root"):
        _line_up(tmp_path, job).start({"ray": None}, lambda _: None)
