import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from bench.peers.rig import Meter, ProcessTree

# A server whose child process does the work; the child prints a line when it is running.
_BUSY = "print('up', flush=True)\nwhile True: pass"
_PARENT = f"""
import subprocess, sys, signal
subprocess.Popen([sys.executable, "-c", {_BUSY!r}])
signal.pause()
"""
_SPIN_S = 0.2


@contextmanager
def _server(program: str) -> Iterator[ProcessTree]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        tree = ProcessTree([process.pid])
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield tree
        finally:
            tree.end(60.0)


def test_the_work_of_a_child_process_counts_for_the_server() -> None:
    """Most peers run inference in a worker process, while the process that was started is nearly idle."""
    with _server(_PARENT) as tree:
        meter = Meter(tree)
        (child,) = [process for process in tree.members() if process.ppid() != psutil.Process().pid]
        with meter:
            begun_s = child.cpu_times().user
            while child.cpu_times().user < begun_s + _SPIN_S:
                pass
    usage = meter.usage
    assert usage["cpu_s"] >= _SPIN_S - 0.02, "clock ticks are 10 ms"
    assert usage["cpu_percent"] == pytest.approx(100 * usage["cpu_s"] / usage["wall_s"])
    assert usage["rss_mb"] > 2 * 5, "two interpreters"
    assert 0 < usage["pss_mb"] < usage["rss_mb"], "they share their libraries"


def test_a_stopped_server_uses_no_processor_time() -> None:
    """Processor time from before the measurement, for example to load the model, does not count."""
    with _server(_BUSY) as tree:
        tree.freeze()
        with Meter(tree) as meter:
            pass
        tree.thaw()
    assert meter.usage["cpu_s"] == 0
    assert meter.usage["rss_mb"] > 0
