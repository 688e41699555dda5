"""A vehicle process that can be killed, frozen and stopped during its run."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from edge.cli import READY
from ops.processes.child import ChildProcess
from shared.errors import SkylaneError
from shared.runlog.latency_log import CSV_NAME, LogError, Outcome, read_rows

_READY_S = 60.0


class VehicleError(SkylaneError):
    """A vehicle process did not start or end as expected."""


class VehicleProcess(ChildProcess):
    """A process of `skylane edge play`, which is killed when the `with` block ends.

    It plays once the constructor has returned, or with `waits_for_go` after `go()`. Its run is in `folder`, its output in
    `<folder>.log`.
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
        command = [*wrapper, sys.executable, "-P", "-m", "skylane", "edge", "play", str(source), *flags]
        command += ["--vehicle", self.name, "--out", str(folder), "--wait-for-go"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(command, folder.with_name(f"{folder.name}.log"), environment=environment)
        try:
            if awaits_ready:
                self._await_ready()
            if not waits_for_go:
                self.go()
        except BaseException:
            self.kill()
            raise

    @property
    def is_ready(self) -> bool:
        """True if the process has reported that it is ready to play."""
        return READY in self.output

    def rows(
        self, outcome: Outcome | None = None, *, due_ns: tuple[float, float] | None = None
    ) -> list[dict[str, str]]:
        """Returns the rows of the vehicle's latency log so far; empty before the log exists.

        With `outcome`, only rows of this outcome; with `due_ns`, only frames due from the first time to before the second.
        """
        rows: list[dict[str, str]] = []
        with suppress(LogError):
            rows = list(read_rows(self.folder))
        if due_ns is not None:
            rows = [row for row in rows if due_ns[0] <= int(row["t_due_ns"] or 0) < due_ns[1]]
        return [row for row in rows if outcome in (None, row["outcome"])]

    def closed(self, outcome: Outcome | None = None) -> int:
        """Returns the number of rows of the latency log so far, or of its rows with `outcome`."""
        path = self.folder / CSV_NAME
        log = path.read_bytes() if path.exists() else b""
        return max(0, log.count(b"\n") - 1) if outcome is None else log.count(f",{outcome.value},".encode())

    def go(self) -> None:
        """Lets a vehicle with `waits_for_go` begin."""
        assert self._process.stdin is not None
        with suppress(OSError):  # `wait` reports a process that has just ended.
            self._process.stdin.write(b"go\n")

    def stop(self) -> None:
        """Sends SIGINT once, so that the vehicle drains; a second SIGINT would end it at once."""
        if not self._is_asked:
            self._is_asked = True
            self._process.send_signal(signal.SIGINT)

    def wait(self, limit_s: float = 120.0) -> int:
        """Waits until the vehicle has ended, and returns its exit code.

        Raises:
            VehicleError: it is still running after `limit_s`.
        """
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise VehicleError(f"{self.name} still runs after {limit_s:g} s: {self.log_tail}") from error

    def end(self, limit_s: float = 60.0) -> None:
        """Stops the vehicle and checks that it ends in order.

        Raises:
            VehicleError: it does not end, or with an exit code other than 0.
        """
        if self.is_running:
            self.stop()
        code = self.wait(limit_s)
        if code:
            raise VehicleError(f"{self.name} ended with exit code {code}: {self.log_tail}")

    def _await_ready(self) -> None:
        if not self.wait_until(lambda: self.is_ready, _READY_S):
            how = (
                f"was not ready within {_READY_S:g} s" if self.is_running else f"ended with exit code {self.exit_code}"
            )
            raise VehicleError(f"{self.name} {how}: {self.log_tail}")
