"""A Python program in a terminal of its own, whose keys a test presses."""

import os
import pty
import sys
import termios
from contextlib import suppress
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class Terminal:
    """A program that a terminal controls."""

    def __init__(self, *arguments: str) -> None:
        self.process, self._terminal = pty.fork()
        if not self.process:
            os.chdir(_ROOT)
            os.environ.update(COLUMNS="200", PYTHONPATH=str(_ROOT))
            os.execv(sys.executable, [sys.executable, *arguments])
        self.text = ""
        self._code: int | None = None
        self._echoed = False

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self._terminal, keys.encode())

    def read_until(self, wanted: str) -> None:
        """Waits until the program has written a text, or has ended."""
        with suppress(OSError):  # Linux reports the end of the program so.
            while wanted not in self.text and (found := os.read(self._terminal, 4096)):
                self.text += found.decode(errors="replace")

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed; after the end, whether it did then."""
        return self._echoed if self._code is not None else bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def end(self) -> int:
        """Waits for the end of the program and returns its exit code."""
        if self._code is None:
            self.read_until("\0")
            self._echoed = self.echoes
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
            os.close(self._terminal)
        return self._code
