"""Child processes: how they are started, awaited and ended, and where their output goes.

A `ChildProcess` runs any command. A `Child` runs a module and exchanges lines of JSON with it: the module reads `settings`
and sends messages with `reply`, or calls `serve`. Also the flags of command lines.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from shared.errors import SkylaneError
from shared.files import create_file, open_own
from shared.runtime.processes import terminate

_READ_BYTES = 1 << 16
_TIMEOUT_S = 600.0
_EXIT_TIMEOUT_S = 10.0
_ERROR_CHARACTERS = 300
_POLL_INTERVAL_S = 0.02


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
    """A child process that writes into a log file; killed when the block ends."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        mode: str = "wb",
        **options: Any,
    ) -> None:
        """Starts the process.

        Args:
            command: The command with its arguments.
            log: File of its output; None: a temporary file.
            environment: Variables added to this process's.
            mode: How the log is opened: "wb", or "ab" to append.
            options: Options of `subprocess.Popen`; standard output also goes to the log unless `stdout` is given.
        """
        own = open_own if mode == "ab" else create_file
        self._log: IO[Any] = own(log) if log else tempfile.NamedTemporaryFile(mode, prefix="skylane-")  # noqa: SIM115 (`kill` closes it)
        self.log = log or Path(self._log.name)  # The file of its output.
        self._log.seek(0, os.SEEK_END)
        options = {"stdin": subprocess.PIPE, "stdout": self._log, **options}
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stderr=self._log, bufsize=0, env={**os.environ, **(environment or {})}, **options
            )
        except OSError:
            self._log.close()
            raise

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
        """True if the process still runs."""
        return self.exit_code is None

    @property
    def output(self) -> str:
        """The output of the process so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def log_tail(self) -> str:
        """The last line of the log."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip().removeprefix("skylane: ") if lines else "it wrote no message"

    def wait_until(self, condition: Callable[[], object], limit_s: float) -> bool:
        """Waits until a condition is true; returns False if the process has ended first, or after `limit_s`."""
        until_s = time.monotonic() + limit_s
        while not condition():
            if not self.is_running or time.monotonic() > until_s:
                return bool(condition())
            time.sleep(_POLL_INTERVAL_S)
        return True

    def terminate(self, limit_s: float) -> None:
        """Ends the process with SIGTERM, then with SIGKILL after `limit_s`."""
        try:
            terminate(self._process, limit_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kills the process if it runs, and closes its pipes; the log remains if a file was given."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


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
        before = filter(None, [os.environ.get("PYTHONPATH")])  # An empty part would be the working directory.
        super().__init__(
            [sys.executable, "-P", "-m", module, json.dumps(settings, default=str)],
            log,
            # It finds the modules that this process finds. TensorFlow's log would hide the last error.
            environment={
                "PYTHONPATH": os.pathsep.join((*before, *map(os.path.abspath, sys.path))),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **(environment or {}),
            },
            mode="ab",
            stdout=subprocess.PIPE,
        )
        self._received = b""
        self._overdue = 0  # Replies to requests that timed out, which precede the next reply.
        self._lock = threading.Lock()

    def wait(self, timeout_s: float = _TIMEOUT_S) -> Any:
        """Waits until the process is ready, and returns its first message as `read` does; ends it without a message."""
        try:
            return self.read(timeout_s)
        except BaseException:
            self.kill()
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

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # It closed its standard output, and still runs.
            self._process.wait(_EXIT_TIMEOUT_S)
        if self._log.closed:
            return f"{self.title} has ended"
        return f"{self.title} has ended with code {self._process.returncode}: {self.log_tail[-_ERROR_CHARACTERS:]}"


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
