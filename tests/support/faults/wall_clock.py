"""A wall clock for single processes that can be stepped, by libfaketime, without changing the machine's clock."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_FOLDERS = ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib64/faketime")
LIBRARY = next((file for folder in _FOLDERS if (file := Path(folder) / "libfaketimeMT.so.1").is_file()), None)
LIBRARY_MISSING = "no libfaketime: apt-get install faketime"


class WallClock:
    """The wall clock of processes that are started with `environment`; correct until it is stepped."""

    def __init__(self, file: Path) -> None:
        """Creates the clock; the processes read their offset from `file`."""
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self.step(0)

    def step(self, seconds: int) -> None:
        """Sets the offset of the clock. The file is replaced atomically, because it can be read at any time."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{seconds:+d}s\n")
        part.replace(self._file)

    def shown_s(self) -> float:
        """Starts a process and returns the offset of the wall clock that it reads, in seconds."""
        command = [sys.executable, "-c", "import time; print(time.time())"]
        output = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True
        ).stdout
        return float(output) - time.time()

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for a process. As on a real machine, only the wall clock is stepped."""
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


def can_be_stepped(pid: int) -> bool:
    """Returns whether a process runs with a clock that can be stepped."""
    return LIBRARY is not None and LIBRARY.name in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
