"""An engine's process, seen from the worker."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from cloud.engines.engine import Images, InferenceError, Outputs
from cloud.isolation.channel import Channel, ChannelClosedError
from cloud.isolation.shared_memory import SharedMemory, SharedMemoryError
from shared.logs import get_logger
from shared.network.address import BROKER_PASSWORD_VARIABLES
from shared.network.env_names import TOKEN_VARIABLES
from shared.runtime.processes import end

_LEAVING_S = 5.0
_MAX_LINE = 2000  # Characters of a line that an engine's process writes.
_LOG = get_logger("cloud")


class ProcessLostError(InferenceError):
    """An engine's process died, ends by a bug, or had to be killed because it did not answer."""


class EngineProcess:
    """A child process that opens an engine as soon as it is started. Used by one thread at a time.

    It shares the terminal's Ctrl-C with nobody, so that a worker can drain, and ends with the worker however that ends.
    """

    def __init__(self, opening: Mapping[str, Any]) -> None:
        """`opening`: what `cloud.isolation.engine_process` must know of the engine. Returns at once; ask `opened`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        their_lifeline, self._lifeline = os.pipe()
        self._channel = Channel(ours)
        self._pictures: SharedMemory | None = None
        self._results: SharedMemory | None = None
        fds = (theirs.fileno(), their_lifeline)
        # Not forked: locks and threads of the worker's libraries would come along. What it imports is what we would.
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
        """The process's number."""
        return self._process.pid

    def opened(self, patience_s: float) -> Mapping[str, Any]:
        """Wait until the engine is open: what it says of itself, or (`kind` is not "open") why it cannot.

        Raises:
            ProcessLostError: it died over it, or did not come to an end.
        """
        if self._facts is None:
            self._facts, _ = self._answer(patience_s, "opening the model")
        return self._facts

    def infer(self, batch: Images, patience_s: float) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`.

        Raises:
            InferenceError: the model failed on the batch.
            ProcessLostError: the process died over it, or did not answer in time and was killed.
        """
        is_new = self._pictures is None or self._pictures.size < batch.nbytes
        if is_new:
            self._let_go(self._pictures)
            self._pictures = SharedMemory.of_size(batch.nbytes)
        assert self._pictures is not None
        np.copyto(self._pictures.array(np.uint8, batch.shape), batch)
        try:
            self._channel.send({"shape": batch.shape}, self._pictures if is_new else None)
        except ChannelClosedError as error:
            raise self._lost("between two batches") from error
        answer, results = self._answer(patience_s, f"a batch of {len(batch)}")
        if results is not None:
            self._let_go(self._results)
            self._results = results
        if answer["kind"] == "failed":
            raise InferenceError(answer["problem"])
        if answer["kind"] == "broken":
            raise ProcessLostError(f"the engine's process ended by a bug: {answer['problem']}")
        assert self._results is not None
        try:
            # Copied: the next batch overwrites what is shared, while this one is still being encoded.
            return {
                head: self._results.array(dtype, shape, offset).copy() for head, dtype, shape, offset in answer["heads"]
            }
        except SharedMemoryError as error:
            raise InferenceError(str(error)) from error

    def kill(self) -> None:
        """End it now; nothing is left of it."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Have it end. Ending twice is no error."""
        self._channel.close()
        end(self._process, _LEAVING_S)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._let_go(self._pictures)
        self._let_go(self._results)
        self._pictures = self._results = None

    def _answer(self, patience_s: float, doing: str) -> tuple[dict[str, Any], SharedMemory | None]:
        try:
            return self._channel.receive(patience_s)
        except TimeoutError as error:
            raise ProcessLostError(
                f"the engine's process was killed: {doing} took more than {patience_s:.3g} s"
            ) from error
        except ChannelClosedError as error:
            raise self._lost(doing) from error

    def _lost(self, doing: str) -> ProcessLostError:
        """What became of a process that answers no more."""
        try:
            code = self._process.wait(_LEAVING_S)
        except subprocess.TimeoutExpired:
            return ProcessLostError(f"the engine's process left its channel at {doing}")
        if code < 0:
            name = signal.Signals(-code).name
            why = " (out of memory, as a rule)" if -code == signal.SIGKILL else ""
            return ProcessLostError(f"the engine's process was ended by {name}{why} at {doing}")
        return ProcessLostError(f"the engine's process ended with code {code} at {doing}")

    def _log_output(self) -> None:
        """Logs what the process and its libraries write to their standard error, also right before a crash."""
        assert self._process.stderr is not None
        with self._process.stderr as output:
            while line := output.readline(_MAX_LINE):
                if line.strip():
                    _LOG.warning("output of an engine's process", pid=self._process.pid, line=line.rstrip())

    @staticmethod
    def _let_go(memory: SharedMemory | None) -> None:
        if memory is not None:
            memory.close()


def _environment() -> dict[str, str]:
    """The worker's own, without what lets anybody in anywhere: a model is code, and might look for that."""
    own = {
        name: value for name, value in os.environ.items() if name not in (*BROKER_PASSWORD_VARIABLES, *TOKEN_VARIABLES)
    }
    return own | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
