"""A process of a baseline, told what to do in lines of JSON: its own interpreter, as the original had its own."""

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

from bench.load.playback import BenchError
from shared.runtime.processes import end

READY = "ready"
_STOP_S = 10.0
_ANSWER_S = 600.0
_LAST_WORDS = 300  # Characters.


class Child(AbstractContextManager["Child"]):
    """`python -m MODULE FLAGS` that serves errands; ready when `wait` returns, ended when the block ends."""

    def __init__(self, module: str, **flags: object) -> None:
        """`flags`: of the module's command, by name."""
        self._module = module
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the block.
        given = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process, _STOP_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # An errand that never reached it.
                pipe.close()
        self._said.close()

    def wait(self) -> Self:
        """Until it serves.

        Raises:
            BenchError: it ended instead; its last words are told.
        """
        if self._line() != READY:
            raise BenchError(f"{self._module} did not say that it is ready")
        return self

    def ask(self, **errand: object) -> Any:
        """Have an errand done; what it answers.

        Raises:
            BenchError: it ended, or took ten minutes.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(errand) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(f"{self._module}: {self._last_words()}") from error
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        limit = threading.Timer(_ANSWER_S, self._process.kill)  # Then its pipe ends.
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            raise BenchError(f"{self._module}: {self._last_words()}")
        return line.strip()

    def _last_words(self) -> str:
        self._process.wait(_STOP_S)
        self._said.seek(0)
        last = [line.strip() for line in self._said.read().splitlines() if line.strip()][-1:]
        return "".join(last)[-_LAST_WORDS:] or f"ended with code {self._process.returncode} and without a word"


def serve(errand: Callable[[Mapping[str, Any]], object]) -> None:
    """Say that this process is ready, and do every errand that comes in on the standard input until that ends."""
    print(READY, flush=True)  # noqa: T201 - to the parent.
    for line in sys.stdin:
        print(json.dumps(errand(json.loads(line))), flush=True)  # noqa: T201 - to the parent.


def file_of(folder: Path, kind: str, number: int) -> Path:
    """Where a baseline leaves a frame's picture for the bench to look at."""
    return folder / f"{kind}-{number:04d}.jpg"
