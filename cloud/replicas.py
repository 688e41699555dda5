"""Replicas: several worker processes on one host, started, watched, restarted and drained together."""

import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cloud.config import CloudConfig, connection_of
from shared.errors import SkylaneError
from shared.log_lines import READY, failure_reason, read_line
from shared.logs import RateLimitedLogger, get_logger
from shared.mqtt.name_guard import client_id
from shared.network.endpoint import LAST_PORT, Endpoint
from shared.runtime.health_file import HealthFile, is_fresh
from shared.runtime.machine import usable_cores
from shared.runtime.processes import end

_LONGEST_BACK_OFF_S = 30.0
_SOUND_S = 60.0  # Who ran so long is restarted as if for the first time.
_DRAIN_S = 90.0
_LOOK_S = 0.2
_LAST_WORDS = 3  # Lines.

_LOG = get_logger("cloud")
_WAITING = RateLimitedLogger(_LOG)


class ReplicasError(SkylaneError):
    """Replicas cannot be run here, or one did not get ready."""


def stop_with_parent() -> None:
    """Have this process drain when its standard input ends, as it does when its parent is gone, however that died."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1 << 12):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class _Replica:
    """One worker process after the other, under one name."""

    def __init__(self, name: str, arguments: Sequence[str], resources: Path | None, back_off_s: float) -> None:
        self.name = name
        self.is_ready = False
        self.starts_at_s = 0.0  # By time.monotonic; not before.
        self.said: deque[str] = deque(maxlen=_LAST_WORDS)
        self.process: subprocess.Popen[str] | None = None
        self._arguments = arguments
        self._resources = resources
        self._first_back_off_s = self._back_off_s = back_off_s
        self._starts = 0
        self._started_s = 0.0

    def start(self, environment: dict[str, str], heard: Callable[["_Replica", str | None], None]) -> threading.Thread:
        """Start a process; `heard` is told every line that it says, and then None. Returns the thread that listens."""
        self._starts += 1
        self._started_s = time.monotonic()
        self.is_ready = False
        arguments = [*self._arguments, *(() if self._resources is None else ("--resources", str(self._samples())))]
        process = self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "skylane", "cloud", "serve", *arguments],
            stdin=subprocess.PIPE,  # Which ends with this process: the replica drains then.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which passes it on once.
        )

        def listen() -> None:
            assert process.stderr is not None
            with process.stderr as lines:
                for line in lines:
                    heard(self, line.rstrip())
            heard(self, None)

        thread = threading.Thread(target=listen, name=f"{self.name}-lines", daemon=True)
        thread.start()
        return thread

    def is_online(self, folder: Path) -> bool:
        """Whether the process runs and renews its health file in `folder`."""
        return self.process is not None and self.is_ready and is_fresh(_health_file(folder, self.name))

    def ended(self) -> tuple[int, float]:
        """The process has ended: its exit code, and the seconds after which the next one may start."""
        assert self.process is not None
        code = self.process.wait()
        self._close()
        now_s = time.monotonic()
        if now_s - self._started_s > _SOUND_S:
            self._back_off_s = self._first_back_off_s
        back_off_s = self._back_off_s
        self.starts_at_s = now_s + back_off_s
        self._back_off_s = min(_LONGEST_BACK_OFF_S, 2 * back_off_s)
        return code, back_off_s

    def terminate(self) -> None:
        """Ask the process to drain and end."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            end(self.process, 0)
            self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None

    def _samples(self) -> Path:
        """A file of its own for each process: none is written over."""
        assert self._resources is not None
        number = self.name.rpartition("-")[2]
        part = number if self._starts == 1 else f"{number}-{self._starts}"
        return self._resources.with_stem(f"{self._resources.stem}-{part}")


def _address(first: str, number: int) -> str:
    """Where the replica of a number, from 1, listens: at the next port each, for a balancer to spread calls by load.

    Sharing one port, the kernel would deal out connections blindly, and a client's calls all go by one. Port 0, any
    that is free, is so for each.

    Raises:
        ReplicasError: there is no such port.
        EndpointError: `first` is no HOST:PORT.
    """
    where = Endpoint.parse(first, listens=True)
    if where.port == 0:
        return first
    if where.port + number - 1 > LAST_PORT:
        raise ReplicasError(f"{first}: replica {number} has no port there: give HOST:PORT with room for one each")
    return str(replace(where, port=where.port + number - 1))


def _health_file(folder: Path, replica: str) -> Path:
    return folder / f"{replica}.health"


class Replicas:
    """Runs the workers `<worker>-1` and so on until stopped; all drain then."""

    def __init__(self, settings: CloudConfig, worker: str, resources: Path | None, *, back_off_s: float = 1.0) -> None:
        """`resources`: each replica samples into a file of its own beside it.

        `back_off_s`: until one that ended by itself is started again; twice as long each time.
        """
        self._settings = settings
        self._worker = worker
        self._resources = resources
        self._back_off_s = back_off_s
        self._environment = {**os.environ, "SKYLANE_BROKER": settings.broker}  # Which would win over the file.
        self._lines: queue.SimpleQueue[tuple[_Replica, str | None]] = queue.SimpleQueue()
        self._listeners: list[threading.Thread] = []
        self._was_ready = False  # Whether all were, once.
        self._health = HealthFile(settings.health_file)
        self._undrained: list[str] = []  # Replicas that ended in another way than asked, and how.
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ask all to drain and end; may be called from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Run until stopped.

        Raises:
            SkylaneError: the broker cannot be reached or cannot share frames, a replica ended before all were ready, or
                did not drain in the end.
        """
        self._check_broker()
        with tempfile.TemporaryDirectory(prefix="skylane-replicas-") as folder:
            numbers = range(1, self._settings.replicas + 1)
            replicas = [self._replica(Path(folder), number) for number in numbers]
            try:
                while not self._stopped.is_set():
                    self._start_those_due(replicas)
                    self._hear(replicas)
                    self._health.update(is_online=all(replica.is_online(Path(folder)) for replica in replicas))
                self._drain(replicas)
            finally:
                self._health.remove()
                for replica in replicas:
                    replica.kill()
                for listener in self._listeners:
                    listener.join()

    def _check_broker(self) -> None:
        """Before any model is loaded."""
        if self._settings.no_broker:
            return
        bus = connection_of(self._settings).open(
            client_id("replicas", self._worker),
            None,
            name=self._worker,
            on_waiting=lambda reason: _WAITING.warning(reason, "no connection to the broker", reason=reason),
        )
        shares = bus.supports_shared_subscriptions
        bus.close()
        if not shares:
            raise ReplicasError(
                f"broker {self._settings.broker} speaks MQTT 3.1.1, which cannot share frames between workers: "
                "use Mosquitto, or leave --replicas out"
            )

    def _replica(self, folder: Path, number: int) -> _Replica:
        settings = self._settings
        name = f"{self._worker}-{number}"
        doors = {"http": settings.http, "grpc": settings.grpc}
        own: dict[str, Any] = {
            "worker": name,
            "replicas": 1,
            "log_level": "debug" if settings.log_level == "debug" else "info",  # Their `ready` is read here.
            "health_file": str(_health_file(folder, name)),
            "threads": settings.threads or max(1, usable_cores() // settings.replicas),
            **{door: _address(at, number) for door, at in doors.items() if at is not None},
        }
        files = connection_of(settings).certificates(self._worker)
        if files is not None:  # A certificate for the worker is one for all its replicas.
            own |= {"tls_ca": files.authority, "tls_cert": files.certificate, "tls_key": files.key}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True) | own), encoding="utf-8")
        return _Replica(name, ("--config", str(path), "--supervised"), self._resources, self._back_off_s)

    def _start_those_due(self, replicas: Sequence[_Replica]) -> None:
        for replica in replicas:
            if replica.process is None and time.monotonic() >= replica.starts_at_s:
                self._listeners = [thread for thread in self._listeners if thread.is_alive()]
                self._listeners.append(replica.start(self._environment, lambda *heard: self._lines.put(heard)))

    def _hear(self, replicas: Sequence[_Replica]) -> None:
        """Pass on a line that one says, if one does, or see to the end of one.

        Raises:
            ReplicasError: one ended before all were ready.
        """
        try:
            replica, line = self._lines.get(timeout=_LOOK_S)
        except queue.Empty:
            return
        if line is None:
            self._ended(replica)
            return
        if (reason := failure_reason(line)) is not None and reason not in replica.said:
            replica.said.append(reason)
        entry = read_line(line)
        if entry is None:
            _LOG.warning("output of a replica", replica=replica.name, line=line)
            return
        if _LOG.isEnabledFor(logging.getLevelNamesMapping()[entry.level.upper()]):
            sys.stderr.write(f"{line}\n")  # It has its time, level and worker already.
        if entry.is_ready_of(replica.name):
            replica.is_ready = True
            if not self._was_ready and all(other.is_ready for other in replicas):
                self._was_ready = True
                _LOG.info(READY, replicas=len(replicas))

    def _ended(self, replica: _Replica) -> None:
        code, back_off_s = replica.ended()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if self._stopped.is_set():
            if code and replica.is_ready:  # Otherwise it held nothing yet.
                self._undrained.append(f"{replica.name} {how}")
            return
        if not self._was_ready:
            log_tail = " / ".join(replica.said) or "it logged no error"
            raise ReplicasError(f"replica {replica.name} {how} before all were ready: {log_tail}")
        _LOG.error("replica ended", replica=replica.name, reason=how, restart_in_s=back_off_s)

    def _drain(self, replicas: Sequence[_Replica]) -> None:
        deadline_s = time.monotonic() + _DRAIN_S
        for replica in replicas:
            replica.terminate()
        while any(replica.process for replica in replicas) and time.monotonic() < deadline_s:
            self._hear(replicas)
        late = [f"{replica.name} did not end within {_DRAIN_S:g} s" for replica in replicas if replica.process]
        if self._undrained or late:
            raise ReplicasError(
                f"not all replicas drained: {', '.join((*self._undrained, *late))}; "
                "vehicles send what they held again, or count it as lost"
            )
