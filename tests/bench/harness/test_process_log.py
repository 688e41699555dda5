import csv
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.harness.process_log import MEASURES, Life, ProcessLog, children

WAIT_S = 60.0
_LEAK = """
import os, sys, threading
kept = bytearray()
print("done", flush=True)
for _ in sys.stdin:
    kept += os.urandom(32 << 20)
    kept_files = [os.dup(0) for _ in range(5)]
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("done", flush=True)
"""


@contextmanager
def _leaking() -> Iterator[subprocess.Popen[str]]:
    """A process that takes memory, files and a thread for every line that it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", _LEAK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        _await_done(process)  # Until then it is Python that takes memory.
        yield process
        process.stdin.close()


def _leak(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    _await_done(process)


def _await_done(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def _looked(log: ProcessLog, life: Life, times: int) -> None:
    """Wait until a process was looked at so many more times."""
    wanted, pause = len(life.times_s) + times, threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if len(life.times_s) >= wanted:
            return
        pause.wait(0.01)
    pytest.fail(f"{log} looked {len(life.times_s)} times")


def test_what_a_process_takes_is_seen(tmp_path: Path) -> None:
    """The slope of a soak is as good as these numbers."""
    with _leaking() as process, ProcessLog(tmp_path / "log.csv", interval_s=0.01) as log:
        life = log.watch("worker", "worker-1", process.pid)
        _looked(log, life, 1)
        before = {measure: getattr(life, measure)[-1] for measure in MEASURES}
        _leak(process)
        _looked(log, life, 2)
        after = {measure: getattr(life, measure)[-1] for measure in MEASURES}
    assert after["rss_bytes"] - before["rss_bytes"] > 30 << 20
    assert after["fds"] - before["fds"] == 5
    assert after["threads"] - before["threads"] == 1
    with (tmp_path / "log.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(life.times_s)


def test_a_process_that_is_gone_ends_its_life(tmp_path: Path) -> None:
    """A worker that was killed, and not yet waited for, must not stand in the log with no memory at all."""
    with ProcessLog(tmp_path / "log.csv", interval_s=0.01) as log:
        with _leaking() as process:
            gone = log.watch("worker", "worker-1", process.pid)
            process.kill()
            with _leaking() as other:
                stays = log.watch("worker", "worker-2", other.pid)
                _looked(log, stays, 3)
                looks = len(gone.times_s)
                _looked(log, stays, 3)
        assert len(gone.times_s) == looks
        assert all(gone.rss_bytes)


def test_a_slope_begins_when_a_process_has_settled() -> None:
    """Every process grows while it imports and warms up; that is no leak."""
    life = Life("worker", "worker-1", 1, [float(at) for at in range(100)], [min(at, 50) for at in range(100)])
    assert life.slope("rss_bytes", settled_s=50) == 0.0
    assert life.slope("rss_bytes", settled_s=0) != 0.0
    assert life.slope("rss_bytes", settled_s=100) is None


def test_only_children_of_a_kind_are_found() -> None:
    """A worker's engines are told from what else it started."""
    with _leaking() as process:
        found = children(threading.get_native_id(), "-c")
        assert process.pid in found
        assert process.pid not in children(threading.get_native_id(), "cloud.isolation.engine_process")
