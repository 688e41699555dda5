import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from bench.peers.rig.process_tree import ProcessTree
from bench.peers.rig.resource_meter import Meter

# A server that has another process do its work; both begin with a line.
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


def test_what_a_child_does_is_the_servers() -> None:
    """Most peers infer in a worker's process: the one that was started hardly works at all."""
    with _server(_PARENT) as tree:
        meter = Meter(tree)
        (child,) = [process for process in tree.members() if process.ppid() != psutil.Process().pid]
        with meter:
            begun_s = child.cpu_times().user
            while child.cpu_times().user < begun_s + _SPIN_S:
                pass
    usage = meter.usage
    assert usage.cpu_s >= _SPIN_S - 0.02, "clock ticks are 10 ms"
    assert usage.cpu_percent == pytest.approx(100 * usage.cpu_s / usage.wall_s)
    assert usage.rss_mb > 2 * 5, "two interpreters"
    assert 0 < usage.pss_mb < usage.rss_mb, "they share their libraries"


def test_what_a_stopped_server_takes_is_nothing() -> None:
    """Nor counts what it took before, such as for loading its model."""
    with _server(_BUSY) as tree:
        tree.freeze()
        with Meter(tree) as meter:
            pass
        tree.thaw()
    assert meter.usage.cpu_s == 0
    assert meter.usage.rss_mb > 0
