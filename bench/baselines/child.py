"""Runs a part of a baseline in a child process with its own interpreter, and exchanges JSON lines with it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Self

from bench.harness.comparison import BenchError
from shared.runtime.processes import terminate

READY = "ready"
_STOP_TIMEOUT_S = 10.0
_REPLY_TIMEOUT_S = 600.0
_ERROR_CHARACTERS = 300


class Child(AbstractContextManager["Child"]):
    """`python -m MODULE FLAGS`; answers requests after `wait` has returned, and ends with the block."""

    def __init__(self, module: str, **flags: object) -> None:
        """`flags`: options of the module's command, by name."""
        self._module = module
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the block.
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        terminate(self._process, _STOP_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # A request that could not be written.
                pipe.close()
        self._errors.close()

    def wait(self) -> Self:
        """Waits until the child is ready.

        Raises:
            BenchError: the child ended; the message contains its last error.
        """
        if self._read_line() != READY:
            raise BenchError(f"{self._module} did not report that it is ready")
        return self

    def ask(self, **request: object) -> Any:
        """Sends a request and returns the reply.

        Raises:
            BenchError: the child ended, or did not reply within ten minutes.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(f"{self._module}: {self._last_error()}") from error
        return json.loads(self._read_line())

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        limit = threading.Timer(_REPLY_TIMEOUT_S, self._process.kill)  # This closes the pipe.
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            raise BenchError(f"{self._module}: {self._last_error()}")
        return line.strip()

    def _last_error(self) -> str:
        self._process.wait(_STOP_TIMEOUT_S)
        self._errors.seek(0)
        last = [line.strip() for line in self._errors.read().splitlines() if line.strip()][-1:]
        return "".join(last)[-_ERROR_CHARACTERS:] or f"it ended with code {self._process.returncode}, without a message"


def serve(handle: Callable[[Mapping[str, Any]], object]) -> None:
    """Reports that this child is ready, and handles requests until its standard input is closed."""
    print(READY, flush=True)  # noqa: T201 - to the parent.
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line))), flush=True)  # noqa: T201 - to the parent.


def image_file(folder: Path, kind: str, number: int) -> Path:
    """The file in which a baseline stores a frame's image for the comparison."""
    return folder / f"{kind}-{number:04d}.jpg"
