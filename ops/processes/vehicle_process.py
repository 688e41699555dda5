"""A vehicle process that can be killed, frozen and stopped during its run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from edge.cli import READY
from ops.processes.child import ChildProcess
from shared.errors import SkylaneError
from shared.runlog.latency_log import CSV_NAME, LogError, Outcome, read_rows

_READY_S = 60.0
_KILL_S = 5.0
_LOOK_S = 0.02


class VehicleError(SkylaneError):
    """A vehicle process did not start or end as expected."""


class VehicleProcess(ChildProcess):
    """`skylane edge play`; sends when the constructor returns, killed when the block ends.

    Its run is in `folder`, its output in `folder.log`.
    """

    def __init__(
        self,
        source: Path,
        folder: Path,
        flags: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        waits_for_go: bool = False,
        awaits_ready: bool = True,
        vehicle: str | None = None,
    ) -> None:
        """Starts the vehicle.

        Args:
            source: What it plays.
            folder: Folder of the run.
            flags: Command-line flags.
            environment: Variables added to this process's environment.
            wrapper: Command prefix, for example `ip netns exec NAME`.
            waits_for_go: Whether it waits for `go()`, so that several vehicles can begin together.
            awaits_ready: Whether the constructor waits until the vehicle is ready; otherwise see `is_ready`.
            vehicle: Name of the vehicle; None: the name of the folder.

        Raises:
            VehicleError: it ended or was not ready in time; the message has its last output.
        """
        self.source = source
        self.folder = folder
        self.name = vehicle or folder.name
        self._is_asked = False
        self._log = folder.with_name(f"{folder.name}.log")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [*wrapper, sys.executable, "-P", "-m", "skylane", "edge", "play", str(source), *flags]
        command += ["--vehicle", self.name, "--out", str(folder), "--wait-for-go"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        try:
            if awaits_ready:
                self._await_ready()
            if not waits_for_go:
                self.go()
        except BaseException:
            self.__exit__()
            raise

    @property
    def output(self) -> str:
        """Its output so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def log_tail(self) -> str:
        """The last line of its output."""
        lines = self.output.strip().splitlines()
        return lines[-1].removeprefix("skylane: ") if lines else "no output"

    @property
    def is_ready(self) -> bool:
        """Whether it has been ready to play."""
        return READY in self.output

    def rows(
        self, outcome: Outcome | None = None, *, due_ns: tuple[float, float] | None = None
    ) -> list[dict[str, str]]:
        """Returns the rows of its latency log so far; empty before the log exists.

        With `outcome`, only rows of this outcome; with `due_ns`, only frames due from the first time to before the second.
        """
        rows: list[dict[str, str]] = []
        with suppress(LogError):
            rows = list(read_rows(self.folder))
        if due_ns is not None:
            rows = [row for row in rows if due_ns[0] <= int(row["t_due_ns"] or 0) < due_ns[1]]
        return [row for row in rows if outcome in (None, row["outcome"])]

    def closed(self, outcome: Outcome | None = None) -> int:
        """Returns the number of rows so far, or of rows with `outcome`."""
        path = self.folder / CSV_NAME
        log = path.read_bytes() if path.exists() else b""
        return max(0, log.count(b"\n") - 1) if outcome is None else log.count(f",{outcome.value},".encode())

    def go(self) -> None:
        """Lets a vehicle with `waits_for_go` begin."""
        assert self._process.stdin is not None
        with suppress(OSError):  # `wait` reports a process that has just ended.
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Sends SIGINT once, so that it drains; a second SIGINT would end it at once."""
        if not self._is_asked:
            self._is_asked = True
            self._process.send_signal(signal.SIGINT)

    def wait(self, limit_s: float = 120.0) -> int:
        """Waits until it has ended and returns the exit code.

        Raises:
            VehicleError: it is still running after `limit_s`.
        """
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise VehicleError(f"{self.name} still runs after {limit_s:g} s: {self.log_tail}") from error

    def end(self, limit_s: float = 60.0) -> None:
        """Stops it and checks that it ends in order.

        Raises:
            VehicleError: it does not end, or with an exit code other than 0.
        """
        if self.is_running:
            self.stop()
        code = self.wait(limit_s)
        if code:
            raise VehicleError(f"{self.name} ended with exit code {code}: {self.log_tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_KILL_S)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _await_ready(self) -> None:
        until_s = time.monotonic() + _READY_S
        while not self.is_ready:
            if not self.is_running:
                raise VehicleError(f"{self.name} ended with exit code {self.exit_code}: {self.log_tail}")
            if time.monotonic() > until_s:
                raise VehicleError(f"{self.name} was not ready within {_READY_S:g} s: {self.log_tail}")
            time.sleep(_LOOK_S)
