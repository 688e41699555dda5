"""Replicas: starts, monitors, restarts and drains several worker processes on one host."""

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cloud.config import CloudConfig
from shared.errors import SkylaneError
from shared.logs import READY, RateLimitedLogger, failure_reason, get_logger, read_line
from shared.mqtt.name_guard import client_id
from shared.network.endpoint import LAST_PORT, Endpoint
from shared.runtime.health_file import HealthFile, is_fresh
from shared.runtime.machine import usable_cores
from shared.runtime.processes import terminate

_BACKOFF_CAP_S = 30.0
_BACKOFF_RESET_S = 60.0  # Run time after which the backoff starts again at its first value.
_DRAIN_S = 90.0
_POLL_S = 0.2
_ERROR_LINES = 3  # Last error lines of a replica, for the message if it ends.

_Lines = queue.SimpleQueue[tuple["_Replica", str | None]]  # Lines of a replica's log; None: the replica has ended.
_LOG = get_logger("cloud")
_WAITING = RateLimitedLogger(_LOG)


class ReplicasError(SkylaneError):
    """Replicas cannot run with this broker, or one of them failed."""


def stop_with_parent() -> None:
    """Drains this process when its standard input ends, which happens however the parent process ends."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1 << 12):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class _Replica:
    """A worker process and its successors, under one name."""

    def __init__(self, name: str, arguments: Sequence[str], resources: Path | None, backoff_s: float) -> None:
        self.name = name
        self.is_ready = False
        self.next_start_s = 0.0  # By time.monotonic.
        self.errors: deque[str] = deque(maxlen=_ERROR_LINES)
        self.process: subprocess.Popen[str] | None = None
        self._arguments = arguments
        self._resources = resources
        self._first_backoff_s = self._backoff_s = backoff_s
        self._starts = 0
        self._started_s = 0.0

    def start(self, environment: dict[str, str], lines: "_Lines") -> threading.Thread:
        """Starts a process; returns the thread that puts each line of its log into `lines`, and None at its end."""
        self._starts += 1
        self._started_s = time.monotonic()
        self.is_ready = False
        arguments = [
            *self._arguments,
            *(() if self._resources is None else ("--resources", str(self._resources_file()))),
        ]
        process = self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "skylane", "cloud", "serve", *arguments],
            stdin=subprocess.PIPE,  # Closed when this process ends, which makes the replica drain.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the parent, which terminates the replicas.
        )

        def read_lines() -> None:
            assert process.stderr is not None
            with process.stderr as log:
                for line in log:
                    lines.put((self, line.rstrip()))
            lines.put((self, None))

        thread = threading.Thread(target=read_lines, name=f"{self.name}-lines", daemon=True)
        thread.start()
        return thread

    def is_online(self, folder: Path) -> bool:
        """True if the process runs and updates its health file in `folder`."""
        return self.process is not None and self.is_ready and is_fresh(_health_file(folder, self.name))

    def handle_end(self) -> tuple[int, float]:
        """Handles the end of the process; returns its exit code, and the seconds until the next start."""
        assert self.process is not None
        code = self.process.wait()
        self._close()
        now_s = time.monotonic()
        if now_s - self._started_s > _BACKOFF_RESET_S:
            self._backoff_s = self._first_backoff_s
        backoff_s = self._backoff_s
        self.next_start_s = now_s + backoff_s
        self._backoff_s = min(_BACKOFF_CAP_S, 2 * backoff_s)
        return code, backoff_s

    def terminate(self) -> None:
        """Makes the process drain and end."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """Kills the process, if there is one."""
        if self.process is not None:
            terminate(self.process, 0)
            self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None

    def _resources_file(self) -> Path:
        """A separate file for each process, so that a restart does not overwrite one."""
        assert self._resources is not None
        number = self.name.rpartition("-")[2]
        part = number if self._starts == 1 else f"{number}-{self._starts}"
        return self._resources.with_stem(f"{self._resources.stem}-{part}")


def _endpoint(first: str, number: int) -> str:
    """The endpoint of a replica: each one, counted from 1, listens on the next port, for a load balancer.

    On a shared port, the kernel would distribute connections without regard to load, and all calls of a client use one
    connection. Port 0 selects a free port for every replica.

    Raises:
        ReplicasError: the port number would be too large.
        EndpointError: `first` is not HOST:PORT.
    """
    endpoint = Endpoint.parse(first, listens=True)
    if endpoint.port == 0:
        return first
    if endpoint.port + number - 1 > LAST_PORT:
        raise ReplicasError(f"{first}: replica {number} would need a port above {LAST_PORT}: choose a lower port")
    return str(replace(endpoint, port=endpoint.port + number - 1))


def _health_file(folder: Path, replica: str) -> Path:
    return folder / f"{replica}.health"


class Replicas:
    """Runs the workers `<worker>-1`, `<worker>-2` and so on until stopped."""

    def __init__(self, settings: CloudConfig, worker: str, resources: Path | None, *, backoff_s: float = 1.0) -> None:
        """Prepares the replicas.

        Args:
            settings: The settings of every replica.
            worker: The prefix of their names.
            resources: The path from which the resource file of each replica is derived.
            backoff_s: The first delay before an ended replica is restarted; it doubles at each further end.
        """
        self._settings = settings
        self._worker = worker
        self._resources = resources
        self._backoff_s = backoff_s
        self._environment = {**os.environ, "SKYLANE_BROKER": settings.broker}  # The variable overrides the file.
        self._lines: _Lines = queue.SimpleQueue()
        self._listeners: list[threading.Thread] = []
        self._was_ready = False  # True if all replicas have been ready at the same time.
        self._health = HealthFile(settings.health_file)
        self._undrained: list[str] = []  # Replicas that failed while draining, with the reason.
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Drains and ends all replicas; may be called by a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Runs the replicas until stopped.

        Raises:
            SkylaneError: the broker is unreachable or cannot share frames, a replica ended before all were ready, or one
                did not drain.
        """
        self._check_broker()
        with tempfile.TemporaryDirectory(prefix="skylane-replicas-") as folder:
            numbers = range(1, self._settings.replicas + 1)
            replicas = [self._replica(Path(folder), number) for number in numbers]
            try:
                while not self._stopped.is_set():
                    self._start_due(replicas)
                    self._handle_line(replicas)
                    self._health.update(is_online=all(replica.is_online(Path(folder)) for replica in replicas))
                self._drain(replicas)
            finally:
                self._health.remove()
                for replica in replicas:
                    replica.kill()
                for listener in self._listeners:
                    listener.join()

    def _check_broker(self) -> None:
        """Checks the broker before any replica loads its models."""
        if self._settings.no_broker:
            return
        bus = self._settings.connection.open(
            client_id("replicas", self._worker),
            None,
            name=self._worker,
            on_waiting=lambda reason: _WAITING.warning(reason, "no connection to the broker", reason=reason),
        )
        shares = bus.supports_shared_subscriptions
        bus.close()
        if not shares:
            raise ReplicasError(
                f"broker {self._settings.broker} supports MQTT 3.1.1 only, which cannot share frames between workers: "
                "use Mosquitto, or omit --replicas"
            )

    def _replica(self, folder: Path, number: int) -> _Replica:
        settings = self._settings
        name = f"{self._worker}-{number}"
        own: dict[str, Any] = {
            "worker": name,
            "replicas": 1,
            "log_level": "debug" if settings.log_level == "debug" else "info",  # The parent needs the READY line.
            "health_file": str(_health_file(folder, name)),
            "threads": settings.threads or max(1, usable_cores() // settings.replicas),
            "http": None,
            "grpc": None,
            "listen": [f"{kind}={_endpoint(first, number)}" for kind, first in settings.addresses.items()],
        }
        files = settings.connection.certificates(self._worker)
        if files is not None:  # All replicas use the certificate of the worker.
            own |= {"tls_ca": files.authority, "tls_cert": files.certificate, "tls_key": files.key}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True) | own), encoding="utf-8")
        return _Replica(name, ("--config", str(path), "--supervised"), self._resources, self._backoff_s)

    def _start_due(self, replicas: Sequence[_Replica]) -> None:
        for replica in replicas:
            if replica.process is None and time.monotonic() >= replica.next_start_s:
                self._listeners = [thread for thread in self._listeners if thread.is_alive()]
                self._listeners.append(replica.start(self._environment, self._lines))

    def _handle_line(self, replicas: Sequence[_Replica]) -> None:
        """Waits briefly for a log line of a replica and forwards it, or handles the end of a replica.

        Raises:
            ReplicasError: it ended before all were ready.
        """
        try:
            replica, line = self._lines.get(timeout=_POLL_S)
        except queue.Empty:
            return
        if line is None:
            self._handle_end(replica)
            return
        if (reason := failure_reason(line)) is not None and reason not in replica.errors:
            replica.errors.append(reason)
        entry = read_line(line)
        if entry is None:
            _LOG.warning("output of a replica", replica=replica.name, line=line)
            return
        if _LOG.isEnabledFor(logging.getLevelNamesMapping()[entry.level.upper()]):
            sys.stderr.write(f"{line}\n")  # The line already has time, level and worker.
        if entry.is_ready_of(replica.name):
            replica.is_ready = True
            if not self._was_ready and all(other.is_ready for other in replicas):
                self._was_ready = True
                _LOG.info(READY, replicas=len(replicas))

    def _handle_end(self, replica: _Replica) -> None:
        code, backoff_s = replica.handle_end()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if self._stopped.is_set():
            if code and replica.is_ready:  # Otherwise it had no frames.
                self._undrained.append(f"{replica.name} {how}")
            return
        if not self._was_ready:
            errors = " / ".join(replica.errors) or "it logged no error"
            raise ReplicasError(f"replica {replica.name} {how} before all were ready: {errors}")
        _LOG.error("replica ended", replica=replica.name, reason=how, restart_in_s=backoff_s)

    def _drain(self, replicas: Sequence[_Replica]) -> None:
        deadline_s = time.monotonic() + _DRAIN_S
        for replica in replicas:
            replica.terminate()
        while any(replica.process for replica in replicas) and time.monotonic() < deadline_s:
            self._handle_line(replicas)
        late = [f"{replica.name} did not end within {_DRAIN_S:g} s" for replica in replicas if replica.process]
        if self._undrained or late:
            raise ReplicasError(
                f"not all replicas drained: {', '.join((*self._undrained, *late))}; "
                "vehicles retry the frames of these replicas, or count them as lost"
            )
