import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bench.peers.rig import ProcessTree

# A server that starts a child in a new session, as the Python part of Triton does, and waits.
_PARENT = """
import subprocess, sys, signal
child = subprocess.Popen([sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""
_TIMEOUT_S = 60.0


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A running process and its running child, which has another session."""
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
    """Returns whether a process has ended; an orphan may remain as a zombie, which holds no resources."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_all_processes_of_a_server_are_stopped_and_resumed(
    family: tuple[subprocess.Popen[str], psutil.Process],
) -> None:
    """A child that continues to run would use processor time while another server is measured."""
    parent, child = family
    tree = ProcessTree([parent.pid])
    tree.freeze()
    assert {psutil.Process(parent.pid).status(), child.status()} == {psutil.STATUS_STOPPED}
    tree.thaw()
    assert psutil.STATUS_STOPPED not in {psutil.Process(parent.pid).status(), child.status()}
    tree.end(_TIMEOUT_S)


def test_all_processes_of_a_server_are_ended(family: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """A server may end without ending its child, whose memory would then be missing for the next run."""
    parent, child = family
    tree = ProcessTree([parent.pid])
    tree.freeze()
    tree.end(_TIMEOUT_S)
    parent.wait(_TIMEOUT_S)
    assert _has_ended(child)


def test_an_orphaned_child_remains_a_member(family: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """The Triton process can outlive the Python process that started it, so every process seen once is ended."""
    parent, child = family
    tree = ProcessTree([parent.pid])
    assert child in tree.members()
    parent.kill()
    parent.wait(_TIMEOUT_S)
    assert tree.members() == [child]
    tree.end(_TIMEOUT_S)
    assert _has_ended(child)


def test_a_kill_of_no_process_returns_at_once() -> None:
    """A server may already have ended by itself, which is no error."""
    ProcessTree([]).end(_TIMEOUT_S)
