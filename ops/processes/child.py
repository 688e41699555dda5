"""Runs a module in a child process with its own interpreter, and exchanges lines of JSON with it.

The parent creates a `Child`; the module reads `settings` and sends messages with `reply`, or calls `serve`. Also what all
child processes need: the flags of their command lines, and free TCP ports.
"""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from shared.errors import SkylaneError

_READ_BYTES = 1 << 16
_TIMEOUT_S = 600.0
_EXIT_TIMEOUT_S = 10.0
_ERROR_CHARACTERS = 300


class BenchError(SkylaneError):
    """A benchmark could not be run."""


class ChildTimeoutError(BenchError):
    """A child process runs, but does not reply."""


def cli_flags(**options: object) -> list[str]:
    """Converts options to words of a command line: `max_batch=2` becomes `--max-batch 2`.

    True stands for a flag without a value; None leaves the setting to the command.
    """
    words: list[str] = []
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *(() if value is True else (str(value),))]
    return words


class ChildProcess:
    """What all child processes that run a part of Skylane have in common."""

    _process: "subprocess.Popen[Any]"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self.exit_code is None


class Child(ChildProcess):
    """`python -m MODULE SETTINGS`, until the block ends; the death of this process closes its standard input."""

    def __init__(
        self,
        module: str,
        settings: Mapping[str, object],
        *,
        title: str = "",
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """Starts the process; `wait` returns when it is ready.

        `title`: name for errors instead of the module's. `environment`: variables added to this process's. `log`: file to
        which its standard error is appended.
        """
        self.title = title or module
        self._errors = log.open("ab+") if log else tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
        # TensorFlow's log would hide the last error.
        variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, json.dumps(settings, default=str)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=variables,
        )
        self._received = b""
        self._overdue = 0  # Replies to requests that timed out, which precede the next reply.
        self._lock = threading.Lock()

    def wait(self, timeout_s: float = _TIMEOUT_S) -> Any:
        """Waits until the process is ready, and returns its first message as `read` does; ends it without a message."""
        try:
            return self.read(timeout_s)
        except BaseException:
            self.end()
            raise

    def ask(self, request: object, timeout_s: float = _TIMEOUT_S) -> Any:
        """Sends a request, and returns the reply as `read` does. Thread-safe."""
        with self._lock:
            self.send(request)
            try:
                while self._overdue:
                    self.read(timeout_s)
                    self._overdue -= 1
                return self.read(timeout_s)
            except ChildTimeoutError:
                self._overdue += 1
                raise

    def send(self, request: object) -> None:
        """Sends a request.

        Raises:
            BenchError: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as error:  # ValueError: the pipe was closed.
            raise BenchError(self._ending()) from error

    def read(self, timeout_s: float = _TIMEOUT_S) -> Any:
        """Returns the next message.

        Raises:
            BenchError: the process has ended; the message contains its last error.
            ChildTimeoutError: there is no message yet; it can still be read later.
        """
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise ChildTimeoutError(f"{self.title} did not reply within {timeout_s:g} s: is it stopped?")
            if not (data := self._process.stdout.read(_READ_BYTES)):
                raise BenchError(self._ending())
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """Kills the process if it runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # It closed its standard output, and still runs.
            self._process.wait(_EXIT_TIMEOUT_S)
        if self._errors.closed:
            return f"{self.title} has ended"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        reason = "".join(lines[-1:])[-_ERROR_CHARACTERS:] or "it wrote no message"
        return f"{self.title} has ended with code {self._process.returncode}: {reason}"


def settings() -> dict[str, Any]:
    """The settings of this child process; paths are strings."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def reply(message: object) -> None:
    """Sends a message to the parent; the first one says that this process is ready."""
    print(json.dumps(message), flush=True)  # noqa: T201 (to the parent)


def serve(start: Callable[..., Callable[[Any], object]]) -> None:
    """Calls `start` with the settings, and answers requests with the function that it returned; the body of a child."""
    handle = start(**settings())
    reply("ready")
    for line in sys.stdin:
        reply(handle(json.loads(line)))


def free_port() -> int:
    """Returns a TCP port on which nothing listens at the moment."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Returns different free TCP ports; repeated calls of `free_port` may return the same port twice."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
