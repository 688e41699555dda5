"""The vehicles of a run: `skylane edge play` in one process each."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

from edge.cli import READY
from edge.run_summary import NOTHING_ANSWERED
from shared.errors import SkylaneError

_KILL_S = 5.0
_LOOK_S = 0.05  # Between two looks at whether a vehicle has ended.


class RunError(SkylaneError):
    """A run of a cell failed."""


class Fleet(AbstractContextManager["Fleet"]):
    """Vehicles `vehicle-1` … that play the same source, and begin together; those that still run when it ends are killed.

    Starting a process takes a second, and many take many: they say when they are ready, and wait for each other.

    Each has its run in `folder/<name>`, and what it says in `folder/<name>.log`.
    """

    def __init__(self, count: int, source: Path, folder: Path, flags: Sequence[Sequence[str]]) -> None:
        """`flags`: of `skylane edge play`, one list a vehicle."""
        self._logs: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._has_begun = False
        with ExitStack() as stack:
            stack.callback(self.__exit__)
            for number in range(1, count + 1):
                name = f"vehicle-{number}"
                self._logs[name] = folder / f"{name}.log"
                command = [sys.executable, "-P", "-m", "skylane", "edge", "play", str(source), *flags[number - 1]]
                command += ["--vehicle", name, "--out", str(folder / name), "--no-sinks", "--wait-for-go"]
                with self._logs[name].open("wb") as log:
                    self._processes[name] = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
                    )
            stack.pop_all()

    @property
    def pids(self) -> Mapping[str, int]:
        """The processes by the vehicles' names."""
        return {name: process.pid for name, process in self._processes.items()}

    def wait(self, limit_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Have them begin, and wait until all have ended. `check` is called several times a second: it raises where waiting has no sense.

        Raises:
            RunError: one failed, which tells its last words, or the limit has passed.
        """
        until_s = time.monotonic() + limit_s
        left = dict(self._processes)
        while left:
            for name, process in list(left.items()):
                code = process.poll()
                if code is not None:
                    del left[name]
                if code and code != NOTHING_ANSWERED:  # Which may be what the study is to find.
                    raise RunError(f"{name} failed with exit code {code}: {self._last_words(name)}")
            check()
            if not self._has_begun and all(READY in self._said(name) for name in self._processes):
                self._begin()
            if left and time.monotonic() >= until_s:
                raise RunError(f"took longer than run_limit_s, {limit_s:g} s: shorten it, or raise the limit")
            if left:
                time.sleep(_LOOK_S)

    def __exit__(self, *_: object) -> None:
        try:
            for process in self._processes.values():
                process.terminate()
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_S)
        finally:  # Ctrl-C pressed again as well: none is left behind.
            for process in self._processes.values():
                process.kill()
                process.wait()
                if process.stdin is not None:
                    with suppress(OSError):
                        process.stdin.close()

    def _begin(self) -> None:
        self._has_begun = True
        for process in self._processes.values():
            assert process.stdin is not None
            with suppress(OSError):  # One that has just ended is told of in a moment.
                process.stdin.write(b"go\n")
                process.stdin.flush()

    def _said(self, name: str) -> str:
        return self._logs[name].read_text(encoding="utf-8", errors="replace")

    def _last_words(self, name: str) -> str:
        lines = self._said(name).strip().splitlines()
        return lines[-1].removeprefix("skylane: ") if lines else "it said nothing"
