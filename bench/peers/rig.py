"""What the servers of the peers run in: their environments, an own network, their processes, and a meter of those."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import psutil

from bench.peers.clients import PeerError
from ops.processes.child import ChildProcess
from shared.threads import ThreadGroup

NETWORK_VARIABLE = "SKYLANE_PEERS_NETWORK"  # Set in a process inside its own network namespace.

_LOCKS = Path(__file__).parent / "requirements"
_COMPLETE = "complete"  # File in the environment with a copy of its lock.
_SYSTEM = Path("/usr/bin/python3.11")
_ENTER = ("unshare", "--net", "--")
_UP = 'ip link set lo up && exec "$@"'
_REAP_S = 5.0
_FREEZE_POLL_S = 0.002
_READY_POLL_S = 0.2
_END_S = 20.0
_SAMPLE_S = 0.1
_METER_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of a peer, created on request from a lock file.

    Each peer needs its own, because their dependencies conflict with each other and with Skylane's.
    """

    folder: Path
    lock: Path
    maker: Path  # The Python that creates it.

    @property
    def programs(self) -> Path:
        """The folder of its commands."""
        return self.folder.absolute() / "bin"

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.programs / "python"

    @property
    def log(self) -> Path:
        """The log of the last installation."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def server_log(self) -> Path:
        """The log of the server."""
        return self.folder.with_name(f"{self.folder.name}-server.log")

    @property
    def is_complete(self) -> bool:
        """Whether it was completely installed from the current lock."""
        stamp = self.folder / _COMPLETE
        return stamp.is_file() and stamp.read_bytes() == self.lock.read_bytes()

    def check(self) -> None:
        """Checks that it can be used.

        Raises:
            PeerError: it is missing, or was created from another lock.
        """
        if not self.folder.is_dir():
            raise PeerError(f"no environment in {self.folder}: python -m bench peers --prepare")
        if not self.is_complete:
            raise PeerError(f"{self.folder} is half made, or of another lock: python -m bench peers --prepare")

    def make(self, on_step: Callable[[str], None]) -> None:
        """Creates it again; pip's output goes to `log`.

        Raises:
            PeerError: a library cannot be installed; the message has the last line of the log.
        """
        (self.folder / _COMPLETE).unlink(missing_ok=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        install: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        with self.log.open("wb") as log:
            on_step("a virtual environment")
            self._run([self.maker, "-m", "venv", "--clear", self.folder], log)
            on_step(f"installing {self.lock.name}")
            self._run([*install, "--require-hashes", "--requirement", self.lock], log)
        (self.folder / _COMPLETE).write_bytes(self.lock.read_bytes())

    def version(self, library: str) -> str:
        """Returns the version of a library in the lock.

        Raises:
            PeerError: the lock does not contain the library.
        """
        for line in self.lock.read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("==")
            if name == library and version:
                return version.split()[0]
        raise PeerError(f"{self.lock} names no {library}")

    def _run(self, command: Sequence[str | Path], log: IO[bytes]) -> None:
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
            raise PeerError(f"{self.folder.name}: {_last_line(self.log) or 'pip failed'} (all of it in {self.log})")


def environment(peer: str, root: Path | None = None) -> Environment:
    """Returns the environment of a peer, whether it exists or not, in `root` (None: `build/peers`).

    Triton needs a Python whose shared library is in a system folder, such as the distribution's Python.
    """
    maker = _SYSTEM if _SYSTEM.exists() else Path(sys.executable)
    return Environment((root or Path("build") / "peers") / peer, _LOCKS / f"{peer}.lock", maker)


def enter_own_network() -> None:
    """Executes this process again in a network namespace with only a loopback device.

    Some peers listen on every address without authentication. Returns if that was done already or is not possible: it
    takes `unshare` and root. Call it before opening any file or socket.
    """
    if has_own_network():
        return
    enter = [*_ENTER, "sh", "-c", _UP, "sh"]
    try:
        tried = subprocess.run([*enter, "true"], capture_output=True, check=False)
    except OSError:
        return
    if tried.returncode == 0:
        command = [*enter, sys.executable, *sys.orig_argv[1:]]
        os.execvpe(command[0], command, {**os.environ, NETWORK_VARIABLE: "own"})  # noqa: S606 - itself.


def has_own_network() -> bool:
    """Whether this process is in its own network namespace."""
    return NETWORK_VARIABLE in os.environ


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
        of_sessions = (
            each for each in psutil.process_iter() if self._sessions and _session(each.pid) in self._sessions
        )
        for process in [*self._members.values(), *of_sessions]:
            with suppress(psutil.NoSuchProcess):
                found = [process, *process.children(recursive=True)]
                self._members |= {each.pid: each for each in found}
        self._members = {pid: process for pid, process in self._members.items() if process.is_running()}
        return [process for process in self._members.values() if _status(process) != psutil.STATUS_ZOMBIE]

    def freeze(self) -> None:
        """Stops all members (SIGSTOP) and returns when all are stopped."""
        while any(_status(process) != psutil.STATUS_STOPPED for process in self.members()):
            self._send(signal.SIGSTOP)
            time.sleep(_FREEZE_POLL_S)

    def thaw(self) -> None:
        """Continues all members."""
        self._send(signal.SIGCONT)

    def end(self, patience_s: float) -> None:
        """Terminates all members and kills the remaining ones after `patience_s`. May be called repeatedly."""
        self.thaw()
        self._send(signal.SIGTERM)
        psutil.wait_procs(self.members(), patience_s)
        while left := self.members():  # A killed process may have started another one.
            self._send(signal.SIGKILL)
            psutil.wait_procs(left, _REAP_S)

    def _send(self, number: signal.Signals) -> None:
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Server(ChildProcess):
    """A server that runs until the block ends; then all its processes have ended."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        """Starts the server in `folder`, with `environment` added to this process's and its output in `log`.

        Raises:
            PeerError: the command cannot be run.
        """
        options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "start_new_session": True}
        try:
            super().__init__(command, log, environment=environment, **options)
        except OSError as error:
            raise PeerError(f"{command[0]} cannot be run: {error.strerror}") from error
        self.tree = ProcessTree([self.pid])

    def wait(self, attempt: Callable[[], object], patience_s: float) -> None:
        """Waits until `attempt` raises no PeerError.

        Raises:
            PeerError: the server ended, or was not ready in time; the message has its last output.
        """
        until_s = time.monotonic() + patience_s
        while True:
            try:
                attempt()
            except PeerError as error:
                if not self.is_running:
                    reason = f"{self.log_tail} (all of it in {self.log})" if self.output.strip() else "it said nothing"
                    raise PeerError(f"the server ended with {self.exit_code}: {reason}") from error
                if time.monotonic() > until_s:
                    raise PeerError(f"no answer within {patience_s:g} s: {error}") from error
            else:
                return
            self.tree.members()  # Records the members, to find them after their parent has ended.
            time.sleep(_READY_POLL_S)

    def __exit__(self, *_: object) -> None:
        self.tree.end(_END_S)
        self.kill()


class Meter(AbstractContextManager["Meter"]):
    """Measures CPU and memory of a process tree within the block.

    The processor time of a process that ends is lost; a process that begins is counted. Resident memory is sampled ten
    times a second for the processes that existed at the beginning, because a search would disturb the measured client.
    Proportional memory is expensive for the kernel, so it is read once at the end.

    `usage` is available after the block: `wall_s`; `cpu_s`, user and system processor time; `cpu_percent`, where 100 is one
    core that is always busy; `rss_mb`, the maximum resident memory in 10^6 bytes, in which shared memory counts for each
    process; `pss_mb`, proportional memory at the end, in which shared memory is divided among the processes.
    """

    usage: dict[str, float]

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._ended = threading.Event()
        self._threads = ThreadGroup(self._ended.set)
        self._rss_bytes = 0.0

    def __enter__(self) -> Self:
        self._members = self._tree.members()
        self._sample()
        self._before_s = {process.pid: _cpu_s(process) for process in self._members}
        self._threads.start("meter", self._run)
        self._begun_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall_s = time.perf_counter() - self._begun_s
        self._ended.set()
        members = self._tree.members()
        cpu_s = sum(_cpu_s(process) - self._before_s.get(process.pid, 0.0) for process in members)
        self._threads.join(_METER_END_S)
        self._members = members
        self._sample()
        self.usage = {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "cpu_percent": 100 * cpu_s / wall_s,
            "rss_mb": self._rss_bytes / 1e6,
            "pss_mb": sum(_read(process, "memory_full_info", "pss") for process in members) / 1e6,
        }

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        self._rss_bytes = max(self._rss_bytes, sum(_read(process, "memory_info", "rss") for process in self._members))


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _status(process: psutil.Process) -> str:
    """Returns the status of a process; that of a zombie if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return str(process.status())
    return psutil.STATUS_ZOMBIE


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _cpu_s(process: psutil.Process) -> float:
    return _read(process, "cpu_times", "user", "system")


def _read(process: psutil.Process, method: str, *fields: str) -> float:
    """Returns the sum of fields that psutil reads; 0 if the process has ended."""
    with suppress(psutil.NoSuchProcess):
        values = getattr(process, method)()
        return float(sum(getattr(values, field) for field in fields))
    return 0.0
