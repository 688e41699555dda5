"""The process tree of a server, including processes with their own session or process group."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil

_REAP_S = 5.0
_LOOK_S = 0.002


class ProcessTree:
    """Processes and all their descendants. A process that was found once stays a member after its parent has ended.

    Members are found by their parent or their session, so a process whose parent ended earlier is found unless it has
    its own session.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        """Creates the tree from the process ids `roots`; ended processes are ignored."""
        self._members: dict[int, psutil.Process] = {}
        for pid in roots:
            with suppress(psutil.NoSuchProcess):
                self._members[pid] = psutil.Process(pid)
        self._sessions = {session for pid in self._members if (session := _session(pid)) == pid}

    def members(self) -> list[psutil.Process]:
        """Returns the running members."""
        for process in [*self._members.values(), *self._of_sessions()]:
            with suppress(psutil.NoSuchProcess):
                found = [process, *process.children(recursive=True)]
                self._members |= {each.pid: each for each in found}
        self._members = {pid: process for pid, process in self._members.items() if process.is_running()}
        return [process for process in self._members.values() if _status(process) != psutil.STATUS_ZOMBIE]

    def freeze(self) -> None:
        """Stops all members (SIGSTOP) and returns when all are stopped."""
        pause = threading.Event()
        while any(_status(process) != psutil.STATUS_STOPPED for process in self.members()):
            self._send(signal.SIGSTOP)
            pause.wait(_LOOK_S)

    def thaw(self) -> None:
        """Continues all members."""
        self._send(signal.SIGCONT)

    def end(self, patience_s: float) -> None:
        """Terminates all members and kills the remaining ones after `patience_s`. May be called repeatedly."""
        self.thaw()
        self._send(signal.SIGTERM)
        psutil.wait_procs(self.members(), patience_s)
        while left := self.members():  # A killed process may have started another one.
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, _REAP_S)

    def _send(self, number: signal.Signals) -> None:
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _of_sessions(self) -> Iterator[psutil.Process]:
        return (each for each in psutil.process_iter() if self._sessions and _session(each.pid) in self._sessions)


def _status(process: psutil.Process) -> str:
    """Returns the status of a process; that of a zombie if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return str(process.status())
    return psutil.STATUS_ZOMBIE


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
