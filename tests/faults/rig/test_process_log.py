import csv
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process_log import MEASURES, ProcessHistory, ProcessLog

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
    """Runs a process that allocates memory, files and a thread for every line on its standard input."""
    with subprocess.Popen(
        [sys.executable, "-c", _LEAK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        _await_done(process)  # Until then, the interpreter allocates memory.
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


def _wait_for_samples(history: ProcessHistory, count: int) -> None:
    """Waits until a process was sampled `count` more times."""
    wanted, pause = len(history.times_s) + count, threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if len(history.times_s) >= wanted:
            return
        pause.wait(0.01)
    pytest.fail(f"only {len(history.times_s)} samples")


def test_samples_show_memory_files_and_threads(tmp_path: Path) -> None:
    """The slopes of a soak test are computed from these numbers."""
    with _leaking() as process, ProcessLog(tmp_path / "log.csv", interval_s=0.01) as log:
        history = log.watch("worker", "worker-1", process.pid)
        _wait_for_samples(history, 1)
        before = {measure: getattr(history, measure)[-1] for measure in MEASURES}
        _leak(process)
        _wait_for_samples(history, 2)
        after = {measure: getattr(history, measure)[-1] for measure in MEASURES}
    assert after["rss_bytes"] - before["rss_bytes"] > 30 << 20
    assert after["fds"] - before["fds"] == 5
    assert after["threads"] - before["threads"] == 1
    with (tmp_path / "log.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(history.times_s)


def test_a_killed_process_is_not_sampled_any_more(tmp_path: Path) -> None:
    """A zombie would appear in the log with a memory of 0."""
    with ProcessLog(tmp_path / "log.csv", interval_s=0.01) as log:
        with _leaking() as process:
            killed = log.watch("worker", "worker-1", process.pid)
            process.kill()
            with _leaking() as other:
                running = log.watch("worker", "worker-2", other.pid)
                _wait_for_samples(running, 3)
                samples = len(killed.times_s)
                _wait_for_samples(running, 3)
        assert len(killed.times_s) == samples
        assert all(killed.rss_bytes)


def test_a_slope_excludes_the_warm_up() -> None:
    """Every process grows while it imports and warms up, which is not a leak."""
    history = ProcessHistory(
        "worker", "worker-1", 1, [float(at) for at in range(100)], [min(at, 50) for at in range(100)]
    )
    assert history.slope("rss_bytes", after_s=50) == 0.0
    assert history.slope("rss_bytes", after_s=0) != 0.0
    assert history.slope("rss_bytes", after_s=100) is None
