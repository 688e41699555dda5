"""Runs a worker in a child process, as an operator starts it."""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self

from ops.processes.child import ChildProcess, cli_flags
from shared.errors import SkylaneError
from shared.logs import failure_reason, read_line
from shared.runtime.processes import terminate

_START_TIMEOUT_S = 180.0  # Loading TensorFlow and warming up a large model take minutes on a small machine.
_STOP_TIMEOUT_S = 60.0


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
        every log line on another thread.

        Raises:
            WorkerError: the worker ended, or was not ready in time; the message contains the errors it logged.
        """
        self.name = name
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=20)
        self._is_ready = False
        self._settled = threading.Event()  # Set when the worker is ready, or has closed its log.
        options = cli_flags(broker=broker, models=models, model=model, worker=name, device=device)
        self._log = log.open("w", encoding="utf-8", buffering=1) if log else nullcontext()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "skylane", "cloud", "serve", *options, *flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log, name=f"{name}-lines", daemon=True)
        self._reader.start()
        try:
            self._settled.wait(_START_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        if not self._is_ready:
            self.__exit__()
            reasons = dict.fromkeys(reason for line in self._last_lines if (reason := failure_reason(line)))
            raise WorkerError(f"the worker was not ready: {' / '.join(reasons) or 'it logged no error'}")

    @property
    def log_tail(self) -> str:
        """The last line of the log."""
        return self._last_lines[-1] if self._last_lines else "it logged nothing"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            terminate(self._process, _STOP_TIMEOUT_S)
        finally:
            self._reader.join()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines, self._log as log:
            for line in lines:
                if log is not None:
                    log.write(line)
                self._last_lines.append(line.rstrip())
                self._on_line(line.rstrip())
                entry = read_line(line)
                if entry is not None and entry.is_ready_of(self.name):
                    self._is_ready = True
                    self._settled.set()
        self._settled.set()
