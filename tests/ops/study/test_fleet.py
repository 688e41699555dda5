import sys
from pathlib import Path

import psutil
import pytest

from analysis.study.measurement import RunError
from edge.cli import READY
from ops.study.fleet import Fleet

_VEHICLE = """#!/bin/sh
case "$*" in *--fails*) echo 'skylane: no source'; exit 1;; esac
exec sleep 600
"""


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Replaces the vehicle by a program that runs until terminated, or fails with `--fails`; returns its flags."""
    program = tmp_path / "vehicle"
    program.write_text(_VEHICLE)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return []


def test_a_failed_vehicle_ends_the_wait_for_the_others(endless: list[str], tmp_path: Path) -> None:
    """The other vehicles may play for an hour; the failure must be reported immediately."""
    with Fleet(2, tmp_path, tmp_path, [endless, ["--fails"]]) as vehicles:
        pids = vehicles.pids
        with pytest.raises(RunError, match="vehicle-2 failed with exit code 1: no source"):
            vehicles.wait(600)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_an_error_of_the_check_ends_the_wait(endless: list[str], tmp_path: Path) -> None:
    """If the worker has ended, the vehicles would wait until every frame has expired."""

    def check() -> None:
        raise RunError("worker-1 ended")

    with Fleet(1, tmp_path, tmp_path, [endless]) as vehicles, pytest.raises(RunError, match="worker-1 ended"):
        vehicles.wait(600, check)


_WAITING_VEHICLE = f"""#!/bin/sh
case "$*" in *--slow*) sleep 0.3;; esac
echo '{READY}'
read -r _
[ "$(cat vehicle-*.log | grep -c '{READY}')" = 2 ]
"""


def test_vehicles_start_playing_when_all_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vehicle that starts earlier would be measured while the others load, and could end before they start."""
    program = tmp_path / "vehicle"
    program.write_text(_WAITING_VEHICLE)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.chdir(tmp_path)
    with Fleet(2, tmp_path, tmp_path, [[], ["--slow"]]) as vehicles:
        vehicles.wait(60)


def test_the_error_of_a_failed_vehicle_has_its_last_line(tmp_path: Path) -> None:
    """This line becomes the reason in the table of runs."""
    flags = [["--broker", "mqtt://127.0.0.1:1"]]
    with Fleet(1, tmp_path / "nowhere", tmp_path, flags) as fleet, pytest.raises(RunError) as caught:
        fleet.wait(60)
    assert str(caught.value).startswith(f"vehicle-1 failed with exit code 1: {tmp_path / 'nowhere'} does not exist")


def test_vehicles_that_exceed_the_time_limit_are_terminated(endless: list[str], tmp_path: Path) -> None:
    """A single run must not block a study."""
    limit = pytest.raises(RunError, match=r"longer than run_limit_s, 0\.01 s")
    with Fleet(2, tmp_path, tmp_path, [endless] * 2) as fleet, limit:
        fleet.wait(0.01)
    assert not any(psutil.pid_exists(pid) for pid in fleet.pids.values())
