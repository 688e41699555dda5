"""Runs a worker in a child process, as an operator starts it."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.processes.child import ChildProcess, cli_flags
from shared.errors import SkylaneError
from shared.logs import failure_reason, read_line
from shared.runtime.processes import terminate

_START_TIMEOUT_S = 180.0  # Loading TensorFlow and warming up a large model take minutes on a small machine.
_STOP_TIMEOUT_S = 60.0
_REASON_LINES = 20  # Lines at the end of the log in which the reasons of a failed start are searched.


class WorkerError(SkylaneError):
    """The worker did not get ready."""


class Worker(ChildProcess):
    """`skylane cloud serve` in a child process; ready when the constructor returns, drained when the block ends."""

    def __init__(
        self,
        broker: str,
        *,
        models: Path,
        model: str,
        name: str = "worker",
        device: str = "auto",
        flags: Sequence[str] = (),
        log: Path | None = None,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Starts the worker.

        `flags`: further flags of `skylane cloud serve`, see `cli_flags`. `log`: file for all log lines. `on_line` receives
        every log line until the worker is ready.

        Raises:
            WorkerError: the worker ended, or was not ready in time; the message contains the errors it logged.
        """
        self.name = name
        self._on_line = on_line
        self._lines_read = 0
        options = cli_flags(broker=broker, models=models, model=model, worker=name, device=device)
        command = [sys.executable, "-P", "-m", "skylane", "cloud", "serve", *options, *flags]
        super().__init__(command, log, stdin=None, stdout=subprocess.DEVNULL)
        try:
            is_ready = self.wait_until(self._read_log, _START_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        if not is_ready:
            terminate(self._process, _STOP_TIMEOUT_S)
            lines = self.output.splitlines()[-_REASON_LINES:]
            self.kill()
            reasons = dict.fromkeys(reason for line in lines if (reason := failure_reason(line)))
            raise WorkerError(f"the worker was not ready: {' / '.join(reasons) or 'it logged no error'}")

    def __exit__(self, *_: object) -> None:
        self.terminate(_STOP_TIMEOUT_S)

    def _read_log(self) -> bool:
        """Reads the new complete lines of the log; returns whether the worker has become ready."""
        lines = self.output.rpartition("\n")[0].splitlines()[self._lines_read :]
        self._lines_read += len(lines)
        for line in lines:
            self._on_line(line)
        return any(entry.is_ready_of(self.name) for line in lines if (entry := read_line(line)) is not None)
