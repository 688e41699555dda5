import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bench.peers.rig.process_tree import ProcessTree

# A server that starts another in a session of its own, as Triton's Python part does, and waits.
_PARENT = """
import subprocess, sys, signal
child = subprocess.Popen([sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""
_PATIENCE_S = 60.0


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A process and its child, which has a session of its own; both up."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            yield parent, child
        finally:
            for process in (parent, child):
                if process.pid and psutil.pid_exists(process.pid):
                    process.kill()


def _has_ended(process: psutil.Process) -> bool:
    """An orphan that nobody waits for stays as a zombie, which holds nothing."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_all_of_a_server_is_stopped_and_goes_on(family: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """A child that idles on while another server is measured takes that one's processor time."""
    parent, child = family
    tree = ProcessTree([parent.pid])
    tree.freeze()
    assert {psutil.Process(parent.pid).status(), child.status()} == {psutil.STATUS_STOPPED}
    tree.thaw()
    assert psutil.STATUS_STOPPED not in {psutil.Process(parent.pid).status(), child.status()}
    tree.end(_PATIENCE_S)


def test_nothing_of_a_server_is_left_behind(family: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """A server that is asked to end leaves what it started to nobody; the next run would find its memory taken."""
    parent, child = family
    tree = ProcessTree([parent.pid])
    tree.freeze()
    tree.end(_PATIENCE_S)
    assert parent.wait(_PATIENCE_S) != 0
    assert _has_ended(child)


def test_an_orphan_is_still_a_member(family: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """Triton's own process outlives the Python that started it: whoever was seen once is ended."""
    parent, child = family
    tree = ProcessTree([parent.pid])
    assert child in tree.members()
    parent.kill()
    parent.wait(_PATIENCE_S)
    assert tree.members() == [child]
    tree.end(_PATIENCE_S)
    assert _has_ended(child)


def test_what_kills_nobody_ends_at_once() -> None:
    """Ending what is gone is no error: a server may have died by itself."""
    ProcessTree([]).end(_PATIENCE_S)
