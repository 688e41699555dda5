"""Commands of Skylane as processes, and the lines of their logs."""

import signal
import subprocess
import sys
from pathlib import Path

from ops.processes.child import ChildProcess

WAIT_S = 120.0
_ROOT = Path(__file__).parents[2]


class Command(ChildProcess):
    """`skylane ARGUMENTS`; its log is readable after the end of the block too."""

    def __init__(self, *arguments: object, cwd: Path | None = None) -> None:
        command = [sys.executable, "-m", "skylane", *map(str, arguments)]
        super().__init__(command, environment={"PYTHONPATH": str(_ROOT)}, stdout=subprocess.PIPE, cwd=cwd)
        self._whole_log: str | None = None

    @property
    def log_lines(self) -> list[str]:
        """The complete lines of its standard error so far."""
        text = self.output if self._whole_log is None else self._whole_log
        return text.rpartition("\n")[0].splitlines()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Waits until a number of lines contain a text."""
        assert self.wait_until(lambda: sum(text in line for line in self.log_lines) >= times, WAIT_S), self.log_lines

    def read_line(self) -> str:
        """Waits for a line of standard output."""
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            character = self._process.stdout.read(1)
            assert character, self.log_lines
            line += character
        return line.decode().rstrip()

    def wait(self, limit_s: float = WAIT_S) -> tuple[int, str]:
        """Waits for its end; returns its exit code and standard output."""
        printed, _ = self._process.communicate(timeout=limit_s)
        return self._process.returncode, printed.decode()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, which has no effect if it has ended."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, limit_s: float = WAIT_S) -> tuple[int, str]:
        """Sends a signal, and waits as `wait` does."""
        self.send(number)
        return self.wait(limit_s)

    def kill(self) -> None:
        """See ChildProcess."""
        if self._whole_log is None:
            self._process.kill()
            self._process.wait()
            self._whole_log = self.output
        super().kill()
