"""The worker's handle of the process of an isolated engine."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from cloud.isolation.channel import ChannelClosedError, EngineChannel, SharedMemory, SharedMemoryError, replaced
from shared.inference.engine import Images, InferenceError, Outputs
from shared.logs import get_logger
from shared.network.endpoint import BROKER_PASSWORD_VARIABLES, TOKEN_VARIABLES
from shared.runtime.processes import terminate

_EXIT_TIMEOUT_S = 5.0
_MAX_LINE = 2000  # Characters of a line in the output of the process.
_LOG = get_logger("cloud")


class ProcessLostError(InferenceError):
    """The process of an engine died, raised an unexpected exception, or was killed because it did not reply in time."""


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
