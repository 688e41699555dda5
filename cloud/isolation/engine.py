"""An engine that runs in a separate process, which is replaced when it is lost."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloud.isolation.channel import ChannelClosedError, EngineChannel, SharedMemory, SharedMemoryError, replaced
from shared import clock
from shared.errors import SkylaneError
from shared.inference.engine import DeviceError, EngineError, Images, InferenceError, Outputs
from shared.inference.table import ENGINES
from shared.logs import get_logger
from shared.models.manifest import Manifest, Placement, Precision
from shared.network.endpoint import BROKER_PASSWORD_VARIABLES, TOKEN_VARIABLES
from shared.runtime.processes import terminate

_HANG_FACTOR = 20  # Multiple of the shortest inference after which a batch counts as hanging.
_EXIT_TIMEOUT_S = 5.0
_MAX_LINE = 2000  # Characters of a line in the output of the process.
_LOG = get_logger("cloud")


class IsolationError(SkylaneError):
    """An engine cannot be opened in a separate process."""


class ProcessLostError(InferenceError):
    """The process of an engine died, raised an unexpected exception, or was killed because it did not reply in time."""


@dataclass(frozen=True, slots=True)
class IsolationLimits:
    """Limits of the process of an engine."""

    hang_s: float = 10.0  # Per batch; a batch may always take 20 times the shortest one.
    start_s: float = 180.0  # Limit for opening the model, and for the first batch.
    memory_bytes: int | None = None  # Allocations of data beyond this limit fail. None: no limit.


class IsolatedEngine:
    """Runs any engine in a child process; images and outputs pass through shared memory.

    A batch on which the process raises, hangs, dies or runs out of memory raises InferenceError. A lost process is
    replaced at once; the next batch waits until the new one is warmed up. Not thread-safe.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        placement: Placement,
        *,
        engine: str,
        limits: IsolationLimits = IsolationLimits(),
    ) -> None:
        """Opens the engine.

        Args:
            path: The model file.
            manifest: Its manifest.
            placement: The device.
            engine: A key of ENGINES.
            limits: The limits of the process.

        Raises:
            EngineError, DeviceError: the engine raised it.
            IsolationError: the process died, or the library of the engine is missing.
        """
        self._path = path
        self.limits = limits  # May be changed between batches.
        self.name = engine
        entry = ENGINES[self.name]
        self._opening: dict[str, Any] = {
            "engine": self.name,
            "entry": entry.path,
            "extra": entry.extra,
            "file": str(path.absolute()),
            "manifest": manifest.model_dump_json(exclude_none=True),
            "placement": asdict(replace(placement, instances=1)),
            "memory_bytes": limits.memory_bytes,
            "warm_up": 0,  # The caller warms up the first process and measures it.
        }
        self._fastest_s: float | None = None  # Shortest inference of one image.
        self._facts: Any = None  # The properties of the engine in the first process.
        self._process = EngineProcess(self._opening)
        try:
            facts = self._facts = self._wait_until_open()
        except ProcessLostError as error:
            self._process.kill()
            limit = limits.memory_bytes
            hint = "" if limit is None else f"; its memory limit is {limit >> 20} MiB, which may be too low"
            raise IsolationError(f"{path}: {error}{hint}") from error
        except BaseException:
            self._process.kill()
            raise
        self.device: str = facts["device"]
        self.precision = Precision(facts["precision"])
        self.batch_size: int | None = facts["batch_size"]
        self._opening["warm_up"] = max(1, manifest.warm_up.runs)

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def infer(self, batch: Images) -> Outputs:
        """See Engine."""
        try:
            self._wait_until_open()
            started_ns = clock.now_ns()
            outputs = self._process.infer(batch, self._timeout_s(len(batch)))
        except ProcessLostError as error:
            self._replace(error)
            raise
        except (EngineError, DeviceError, IsolationError) as error:
            self._replace(error)
            raise InferenceError(f"the engine's process could not be replaced: {error}") from error
        took_s = (clock.now_ns() - started_ns) / 1e9 / len(batch)
        self._fastest_s = min(took_s, self._fastest_s or took_s)
        return outputs

    def close(self) -> None:
        """See Engine."""
        self._process.close()

    def _replace(self, error: SkylaneError) -> None:
        """Starts another process, which opens the model in the background."""
        _LOG.warning("engine restarted", file=self._path.name, engine=self.name, pid=self.pid, reason=str(error))
        self._process.kill()
        self._process = EngineProcess(self._opening)

    def _timeout_s(self, size: int) -> float:
        if self._fastest_s is None:
            return self.limits.start_s
        return max(self.limits.hang_s, _HANG_FACTOR * self._fastest_s * size)

    def _wait_until_open(self) -> Any:
        facts = self._process.wait_until_open(self.limits.start_s)
        match facts["kind"]:
            case "open":
                if self._facts and facts["sha256"] != self._facts["sha256"]:
                    raise IsolationError(f"{self._path} has changed since it was loaded: load it again")
                return facts
            case "engine":
                raise EngineError(self._path, facts["problem"])
            case "device":
                raise DeviceError(facts["device"], facts["problem"].partition(": ")[2])
        raise IsolationError(facts["problem"])


class EngineProcess:
    """A child process that opens an engine as soon as it is started. Not thread-safe.

    It does not receive the terminal's Ctrl-C, so that the worker can drain, and it always ends with the worker.
    """

    def __init__(self, opening: Mapping[str, Any]) -> None:
        """Starts the process without waiting; `opening` is the first message to `cloud.isolation.engine_process`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        their_lifeline, self._lifeline = os.pipe()
        self._channel = EngineChannel(ours)
        self._images: SharedMemory | None = None
        self._results: SharedMemory | None = None
        fds = (theirs.fileno(), their_lifeline)
        # A fork would copy the locks of the worker's libraries.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cloud.isolation.engine_process", *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=_environment(),
            pass_fds=fds,
            start_new_session=True,
        )
        theirs.close()
        os.close(their_lifeline)
        try:
            threading.Thread(target=self._log_output, name=f"engine-output-{self.pid}", daemon=True).start()
        except BaseException:
            self._process.kill()
            raise
        self._channel.send(opening)
        self._facts: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_until_open(self, timeout_s: float) -> Mapping[str, Any]:
        """Waits until the engine is open; returns its properties, or an error, whose `kind` is not "open".

        Raises:
            ProcessLostError: the process died or did not finish in time.
        """
        if self._facts is None:
            self._facts, _ = self._receive(timeout_s, "opening the model")
        return self._facts

    def infer(self, batch: Images, timeout_s: float) -> Outputs:
        """Infers a batch, see `shared.inference.engine.Engine.infer`.

        Raises:
            InferenceError: the model failed.
            ProcessLostError: the process died, or did not reply in time.
        """
        is_new = self._images is None or self._images.size < batch.nbytes
        self._images = replaced(SharedMemory.of_size(batch.nbytes) if is_new else None, self._images)
        np.copyto(self._images.array(np.uint8, batch.shape), batch)
        try:
            self._channel.send({"shape": batch.shape}, self._images if is_new else None)
        except ChannelClosedError as error:
            raise self._lost("between two batches") from error
        reply, results = self._receive(timeout_s, f"a batch of {len(batch)}")
        if reply["kind"] == "failed":
            raise InferenceError(reply["problem"])
        if reply["kind"] == "broken":
            raise ProcessLostError(f"the engine's process ended by an unexpected error: {reply['problem']}")
        self._results = replaced(results, self._results)
        try:
            # The next batch overwrites the shared memory while these outputs are still in use.
            return {
                name: self._results.array(dtype, shape, offset).copy() for name, dtype, shape, offset in reply["heads"]
            }
        except SharedMemoryError as error:
            raise InferenceError(str(error)) from error

    def kill(self) -> None:
        """Kills the process and releases its resources."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends the process and releases its resources; may be called twice."""
        self._channel.close()
        terminate(self._process, _EXIT_TIMEOUT_S)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        for memory in (self._images, self._results):
            if memory is not None:
                memory.close()
        self._images = self._results = None

    def _receive(self, timeout_s: float, doing: str) -> tuple[dict[str, Any], SharedMemory | None]:
        try:
            return self._channel.receive(timeout_s)
        except TimeoutError as error:
            raise ProcessLostError(
                f"the engine's process was killed: {doing} took more than {timeout_s:.3g} s"
            ) from error
        except ChannelClosedError as error:
            raise self._lost(doing) from error

    def _lost(self, doing: str) -> ProcessLostError:
        """Returns an error with the exit code or signal of the process."""
        try:
            code = self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ProcessLostError(f"the engine's process closed its channel at {doing}")
        if code < 0:
            name = signal.Signals(-code).name
            why = " (usually out of memory)" if -code == signal.SIGKILL else ""
            return ProcessLostError(f"the engine's process was ended by {name}{why} at {doing}")
        return ProcessLostError(f"the engine's process ended with code {code} at {doing}")

    def _log_output(self) -> None:
        """Logs the standard error of the process and its libraries."""
        assert self._process.stderr is not None
        with self._process.stderr as output:
            while line := output.readline(_MAX_LINE):
                if line.strip():
                    _LOG.warning("output of an engine's process", pid=self._process.pid, line=line.rstrip())


def _environment() -> dict[str, str]:
    """The environment of the worker without credentials, because a model is code and may read them."""
    own = {
        name: value for name, value in os.environ.items() if name not in (*BROKER_PASSWORD_VARIABLES, *TOKEN_VARIABLES)
    }
    return own | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
