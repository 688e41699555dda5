"""A worker in a process of its own, as an operator would start it."""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

from shared.errors import SkylaneError
from shared.log_lines import failure_reason, read_line

_READY_S = 180.0  # Loading TensorFlow and warming a large model up.
_STOP_S = 60.0


class WorkerError(SkylaneError):
    """The worker did not get ready."""


class Worker(AbstractContextManager["Worker"]):
    """`skylane cloud serve` in a child process; ready when the constructor returns, drained when the block ends."""

    def __init__(
        self,
        broker: str,
        *,
        models: Path,
        model: str,
        name: str = "worker",
        device: str = "auto",
        engine: str | None = None,
        precision: str | None = None,
        warm_up: int | None = None,
        max_batch: int | None = None,
        flags: Sequence[str] = (),
        log: Path | None = None,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`engine`, `precision`, `warm_up` and `max_batch`: as the model's manifest says where they are None.

        `flags`: more of `skylane cloud serve`, as a user would write them.

        `on_line` is told every line that the worker says, and `log` takes them all.

        Raises:
            WorkerError: it ended, or was not ready in time; its last lines are told.
        """
        self.name = name
        self._on_line = on_line
        self._said: deque[str] = deque(maxlen=20)
        self._is_ready = False
        self._told = threading.Event()  # That it is ready, or that it has no more to say.
        arguments = [
            "--broker",
            broker,
            "--models",
            str(models),
            "--model",
            model,
            "--worker",
            name,
            "--device",
            device,
        ]
        chosen = {"--engine": engine, "--precision": precision, "--warm-up": warm_up, "--max-batch": max_batch}
        for flag, value in chosen.items():
            arguments += [] if value is None else [flag, str(value)]
        arguments += flags
        self._log = log.open("w", encoding="utf-8", buffering=1) if log else nullcontext()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "skylane", "cloud", "serve", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, name=f"{name}-lines", daemon=True)
        self._listener.start()
        try:
            self._told.wait(_READY_S)
        except BaseException:
            self.__exit__()
            raise
        if not self._is_ready:
            self.__exit__()
            reasons = dict.fromkeys(reason for line in self._said if (reason := failure_reason(line)))
            raise WorkerError(f"the worker was not ready: {' / '.join(reasons) or 'it logged no error'}")

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def log_tail(self) -> str:
        """The last line that it said."""
        return self._said[-1] if self._said else "it said nothing"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except BaseException as error:  # Ctrl-C pressed again: it goes now, and is not left behind.
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            self._listener.join()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines, self._log as log:
            for line in lines:
                if log is not None:
                    log.write(line)
                self._said.append(line.rstrip())
                self._on_line(line.rstrip())
                entry = read_line(line)
                if entry is not None and entry.is_ready_of(self.name):
                    self._is_ready = True
                    self._told.set()
        self._told.set()
