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
from typing import Any, ClassVar

from shared.runtime.memory import KERNEL_SETTING, new_environment

_PROGRAM = Path(__file__).with_name("prepared_process.py")
_COMMAND_LINE_BYTES = 1 << 15
_REPLY_BYTES = 100
_SET_CHILD_SUBREAPER = 36  # prctl(2).
# Variables that a process reads before or while it imports; a command that changes one of them starts as usual.
_EARLY_VARIABLES = ("FAKETIME", "GLIBC_", "LANG", "LC_", "LD_PRELOAD", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON", "TZ")
_LIMITS = (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)  # Inherited, and changed by some tests.
_COMMON = ("ops.processes.null_worker", "ops.doctor.cli", "ops.broker.cli", "ops.fleet.cli", "shared.health")
# Modules to import, by what follows `-m`; the first beginning decides.
_MODULES = {
    "skylane edge play ": ("edge.run", "edge.cli", "edge.transports.mqtt_transport"),
    "skylane cloud serve ": ("cloud.run", "cloud.cli", "cloud.engines.tensorflow.engine"),
    "skylane ": _COMMON,
    "ops.": _COMMON,
    "tests.": _COMMON,
    "bench.": _COMMON,
}
UsualPopen: Any = subprocess.Popen  # For tests whose subject is the start of a process.


class _PreparedProcess:
    """A process that has imported modules, and forks on request; it ends with this one."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it with these variables."""
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", str(_PROGRAM), str(its.fileno()), *modules, " " * _COMMAND_LINE_BYTES]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = UsualPopen(command, pass_fds=[its.fileno()], env=environment, cwd=_PROGRAM.parent, **streams)
        its.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

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


class _Preparation:
    """The prepared processes, which start at the first command that needs them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._environment = dict(os.environ)
        self._limits = [*map(resource.getrlimit, _LIMITS)]
        self._processes: dict[tuple[str, ...], _PreparedProcess] = {}  # By their modules.

    def process(self, command: Any, environment: Mapping[str, str]) -> _PreparedProcess | None:
        """Returns the prepared process for a command with these variables; None if the command starts as usual."""
        if not isinstance(command, list | tuple) or str(command[0]) != sys.executable or "-m" not in command:
            return None
        words = " ".join(str(word) for word in command[1:] if word != "-P").removeprefix("-m ")
        beginning = next((each for each in _MODULES if words.startswith(each)), None)
        if beginning is None or self._is_special(environment):
            return None
        modules = _MODULES[beginning]
        if modules not in self._processes:
            kernel = KERNEL_SETTING.read_text() if "cloud" in beginning and KERNEL_SETTING.exists() else ""
            started = new_environment(self._environment, kernel) or self._environment
            self._processes[modules] = _PreparedProcess(modules, started)
        return self._processes[modules]

    def _is_special(self, environment: Mapping[str, str]) -> bool:
        changed = {name for name, _ in environment.items() ^ self._environment.items()} - {"PYTHONPATH"}
        limits = [*map(resource.getrlimit, _LIMITS)]
        return any(name.startswith(_EARLY_VARIABLES) for name in changed) or limits != self._limits


class _PreparedPopen(UsualPopen):  # type: ignore[misc]  # Popen is generic for mypy alone.
    """A subprocess, forked from a prepared process if there is one for its command."""

    preparation: ClassVar[_Preparation]

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *more: Any) -> None:
        pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest = more
        usual = not (preexec_fn or executable or pass_fds or shell) and close_fds and rest == _REST
        environment = os.environ if env is None else env
        with self.preparation.lock:
            process = self.preparation.process(args, environment) if usual else None
            if process is not None:
                streams = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
                self.pid = process.start([*map(str, args[1:])], environment, str(cwd or Path.cwd()), streams)
        if process is None:
            super()._execute_child(args, executable, preexec_fn, close_fds, *more)
            return
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


# Behind the streams: restore_signals, gid, gids, uid, umask, start_new_session, process_group.
_REST = [True, None, None, None, -1, False, -1]


def install() -> None:
    """Lets `subprocess` use prepared processes."""
    _PreparedPopen.preparation = _Preparation()
    subprocess.Popen = _PreparedPopen  # type: ignore[misc]
