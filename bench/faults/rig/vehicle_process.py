"""A vehicle in a process of its own, that can be killed, frozen and asked to end while it plays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from edge.cli import READY
from shared.errors import SkylaneError
from shared.runlog.latency_log import CSV_NAME, LogError, Outcome, read_rows

_READY_S = 60.0
_KILL_S = 5.0
_LOOK_S = 0.02


class VehicleError(SkylaneError):
    """A vehicle did not do what it was started for."""


class VehicleProcess(AbstractContextManager["VehicleProcess"]):
    """`skylane edge play` over a folder of pictures; it sends when the constructor returns, and is killed with the block.

    Its run is in `folder`, what it says in `folder.log` beside it.
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
        vehicle: str | None = None,
    ) -> None:
        """`environment`: added to this process's. `wrapper`: a command before it, such as `ip netns exec NAME`.

        `waits_for_go`: it begins with `go()` only, so that several can begin together. `vehicle`: what it is called; None:
        as its folder.

        Raises:
            VehicleError: it ended, or was not ready in time; its last words are told.
        """
        self.source = source
        self.folder = folder
        self.name = vehicle or folder.name
        self._is_asked = False
        self._said = folder.with_name(f"{folder.name}.log")
        self._said.parent.mkdir(parents=True, exist_ok=True)
        command = [*wrapper, sys.executable, "-m", "skylane", "edge", "play", str(source), *flags]
        command += ["--vehicle", self.name, "--out", str(folder), "--wait-for-go"]
        with self._said.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        try:
            self._await_ready()
            if not waits_for_go:
                self.go()
        except BaseException:
            self.__exit__()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def said(self) -> str:
        """All that it has printed so far."""
        return self._said.read_text(encoding="utf-8", errors="replace")

    @property
    def log_tail(self) -> str:
        """The last line that it printed."""
        lines = self.said.strip().splitlines()
        return lines[-1].removeprefix("skylane: ") if lines else "it said nothing"

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def rows(self) -> list[dict[str, str]]:
        """The rows of its log so far; none before it has one."""
        with suppress(LogError):
            return list(read_rows(self.folder))
        return []

    def closed(self, outcome: Outcome | None = None) -> int:
        """How many frames have their row; of those that ended so, where an outcome is given."""
        path = self.folder / CSV_NAME
        said = path.read_bytes() if path.exists() else b""
        return max(0, said.count(b"\n") - 1) if outcome is None else said.count(f",{outcome.value},".encode())

    def go(self) -> None:
        """Have it begin."""
        assert self._process.stdin is not None
        with suppress(OSError):  # One that has just ended is told of by whoever waits for it.
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Ask it to drain and end, as Ctrl-C does; asked twice, it is told once: a second Ctrl-C ends it at once."""
        if not self._is_asked:
            self._is_asked = True
            self._process.send_signal(signal.SIGINT)

    def wait(self, limit_s: float = 120.0) -> int:
        """Wait until it has ended; its exit code.

        Raises:
            VehicleError: it still runs after `limit_s`.
        """
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise VehicleError(f"{self.name} still runs after {limit_s:g} s: {self.log_tail}") from error

    def end(self, limit_s: float = 60.0) -> None:
        """Ask it to end, and see that it does so in order.

        Raises:
            VehicleError: it does not, or with an exit code other than 0.
        """
        if self.is_running:
            self.stop()
        code = self.wait(limit_s)
        if code:
            raise VehicleError(f"{self.name} ended with exit code {code}: {self.log_tail}")

    def finish(self, limit_s: float = 120.0) -> None:
        """Wait until it has played to its end, and see that it did so in order.

        Raises:
            VehicleError: it still runs after `limit_s`, or ended with an exit code other than 0.
        """
        self.wait(limit_s)
        self.end()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_KILL_S)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _await_ready(self) -> None:
        until_s = time.monotonic() + _READY_S
        while READY not in self.said:
            if not self.is_running:
                raise VehicleError(f"{self.name} ended with exit code {self._process.returncode}: {self.log_tail}")
            if time.monotonic() > until_s:
                raise VehicleError(f"{self.name} was not ready within {_READY_S:g} s: {self.log_tail}")
            time.sleep(_LOOK_S)
