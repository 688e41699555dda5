import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.study.execution.fleet import Fleet, RunError
from edge.cli import READY

_VEHICLE = """#!/bin/sh
case "$*" in *--fails*) echo 'skylane: no source'; exit 1;; esac
exec sleep 600
"""


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Vehicles that play until they are ended, or fail at once where they are told `--fails`; the flags of the former."""
    program = tmp_path / "vehicle"
    program.write_text(_VEHICLE)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return []


def test_a_vehicle_that_fails_is_not_waited_for_until_the_others_end(endless: list[str], tmp_path: Path) -> None:
    """The first of many may play for an hour: what failed beside it is known at once."""
    with Fleet(2, tmp_path, tmp_path, [endless, ["--fails"]]) as vehicles:
        pids = vehicles.pids
        with pytest.raises(RunError, match="vehicle-2 failed with exit code 1: no source"):
            vehicles.wait(600)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_waiting_ends_where_the_check_says_that_it_has_no_sense(endless: list[str], tmp_path: Path) -> None:
    """Without a worker every frame would have to expire first, one after the other."""

    def check() -> None:
        raise RunError("worker-1 ended")

    with Fleet(1, tmp_path, tmp_path, [endless]) as vehicles, pytest.raises(RunError, match="worker-1 ended"):
        vehicles.wait(600, check)


def test_an_interruption_while_the_vehicles_end_leaves_none_behind(
    endless: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever presses Ctrl-C twice wants it to end, and not to look for processes afterwards."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "terminate", interrupted)
    vehicles = Fleet(2, tmp_path, tmp_path, [endless, endless])
    with pytest.raises(KeyboardInterrupt):
        vehicles.__exit__()
    assert not any(psutil.pid_exists(pid) for pid in vehicles.pids.values())


_PATIENT = f"""#!/bin/sh
case "$*" in *--slow*) sleep 0.3;; esac
echo '{READY}'
read -r _
[ "$(cat vehicle-*.log | grep -c '{READY}')" = 2 ]
"""


def test_vehicles_begin_when_all_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins while others still load is measured beside their loading, and may have ended before they begin."""
    program = tmp_path / "vehicle"
    program.write_text(_PATIENT)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.chdir(tmp_path)
    with Fleet(2, tmp_path, tmp_path, [[], ["--slow"]]) as vehicles:
        vehicles.wait(60)
