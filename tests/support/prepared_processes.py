"""Starts Skylane's own processes as forks of one that has imported their modules, which takes seconds for each otherwise.

`install` replaces `subprocess.Popen`. A command such as `python -P -m skylane edge play …` is then forked from a prepared
process, which has one thread and does nothing else; every other command starts as usual. The new process becomes a child of
this one: its process id, pipes, signals and exit code are those of any child.
"""

import atexit
import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.runtime.memory import KERNEL_SETTING, new_environment

_PROGRAM = Path(__file__).with_name("prepared_process.py")
_COMMAND_LINE_BYTES = 1 << 15
_REPLY_BYTES = 100
_SET_CHILD_SUBREAPER = 36  # prctl(2).
# Variables that a process reads after its imports; a command that changes others starts as usual.
_LATE_VARIABLES = ("PYTEST_", "PYTHONPATH", "SKYLANE_", "COLUMNS", "TF_CPP_MIN_LOG_LEVEL")
_LIMITS = (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)  # Inherited, and changed by some tests.
# Modules to import, by what follows `-m`.
_MODULES = {
    "skylane edge play ": ("edge.run", "edge.cli", "edge.transports.mqtt_transport"),
    "skylane cloud serve ": ("cloud.run", "cloud.cli", "cloud.engines.tensorflow.engine"),
    "ops.": ("ops.processes.null_worker",),
    "tests.": ("ops.processes.null_worker",),
    "bench.": ("ops.processes.null_worker",),
}
_Popen: Any = subprocess.Popen


class _PreparedProcess:
    """A process that has imported modules, and forks on request; it ends with this one."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it. `environment`: variables added to this process's."""
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = {**os.environ, **environment}
        self._added = environment.keys()
        self._limits = [*map(resource.getrlimit, _LIMITS)]
        command = [sys.executable, "-P", str(_PROGRAM), str(its.fileno()), *modules, " " * _COMMAND_LINE_BYTES]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = _Popen(command, pass_fds=[its.fileno()], env=self._environment, **streams)
        its.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with these variables can be a fork."""
        names = {*environment, *self._environment} - self._added
        changed = (name for name in names if environment.get(name) != self._environment.get(name))
        return all(name.startswith(_LATE_VARIABLES) for name in changed) and self._limits == [
            *map(resource.getrlimit, _LIMITS)
        ]

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[int]
    ) -> int:
        """Forks; returns the process id of the new child of this process. `streams`: its standard streams."""
        request = {"arguments": arguments, "environment": dict(environment), "folder": folder}
        prctl = ctypes.CDLL(None).prctl
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # The fork's parent ends at once, and this process becomes its parent.
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            pid = int(self._socket.recv(_REPLY_BYTES))
            self._socket.recv(_REPLY_BYTES)
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return pid


_prepared: dict[tuple[str, ...], _PreparedProcess] = {}  # By their modules.
_lock = threading.Lock()


class _PreparedPopen(_Popen):  # type: ignore[misc]  # Popen is generic for mypy alone.
    """A subprocess, forked from a prepared process if there is one for its command."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *more: Any) -> None:
        pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest = more
        usual = not (preexec_fn or executable or pass_fds or shell) and close_fds and rest == _REST
        environment = os.environ if env is None else env
        process = _prepared_for(args) if usual else None
        if process is None or not process.can_start(environment):
            super()._execute_child(args, executable, preexec_fn, close_fds, *more)
            return
        streams = [number if own == -1 else own for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        with _lock:
            self.pid = process.start([*map(str, args[1:])], environment, str(cwd or Path.cwd()), streams)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


# Behind the streams: restore_signals, gid, gids, uid, umask, start_new_session, process_group.
_REST = [True, None, None, None, -1, False, -1]


def _prepared_for(args: Any) -> _PreparedProcess | None:
    """Returns the prepared process for a command; None if there is none."""
    if not isinstance(args, list | tuple) or str(args[0]) != sys.executable:
        return None
    words = " ".join(str(word) for word in args[1:] if word != "-P").removeprefix("-m ")
    for beginning, modules in _MODULES.items():
        if "-m" in args and words.startswith(beginning):
            with _lock:
                if modules not in _prepared:
                    huge = new_environment({}, KERNEL_SETTING.read_text()) if "cloud" in beginning else None
                    _prepared[modules] = _PreparedProcess(modules, huge or {})
            return _prepared[modules]
    return None


def install() -> None:
    """Lets `subprocess` use prepared processes."""
    subprocess.Popen = _PreparedPopen  # type: ignore[misc]
