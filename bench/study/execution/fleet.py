"""Runs the vehicles of a run: one `skylane edge play` process each."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

from edge.cli import READY
from edge.run_summary import NOTHING_ANSWERED
from shared.errors import SkylaneError

_TERMINATE_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.05


class RunError(SkylaneError):
    """A run of a cell failed."""


class Fleet(AbstractContextManager["Fleet"]):
    """The processes of vehicles `vehicle-1`, `vehicle-2`, …, which play the same source and start at the same time.

    A process takes about a second to start, so every vehicle reports when it is ready and waits for the others. Each
    vehicle writes its run into `folder/<name>` and its output into `folder/<name>.log`. Leaving the context terminates
    the vehicles that are still running.
    """

    def __init__(self, count: int, source: Path, folder: Path, flags: Sequence[Sequence[str]]) -> None:
        """`flags` has the flags of `skylane edge play` for each vehicle."""
        self._logs: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._has_started = False
        with ExitStack() as stack:
            stack.callback(self.__exit__)
            for number in range(1, count + 1):
                name = f"vehicle-{number}"
                self._logs[name] = folder / f"{name}.log"
                command = [sys.executable, "-P", "-m", "skylane", "edge", "play", str(source), *flags[number - 1]]
                command += ["--vehicle", name, "--out", str(folder / name), "--wait-for-go"]
                with self._logs[name].open("wb") as log:
                    self._processes[name] = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
                    )
            stack.pop_all()

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids by the names of the vehicles."""
        return {name: process.pid for name, process in self._processes.items()}

    def wait(self, limit_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Starts the vehicles once all are ready, and waits until all have ended.

        `check` is called several times per second and may raise an error to stop waiting.

        Raises:
            RunError: A vehicle failed (the message has the last line of its output), or `limit_s` has passed.
        """
        deadline_s = time.monotonic() + limit_s
        running = dict(self._processes)
        while running:
            for name, process in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[name]
                if code and code != NOTHING_ANSWERED:  # A run without answers is a valid result of a study.
                    raise RunError(f"{name} failed with exit code {code}: {self._last_line(name)}")
            check()
            if not self._has_started and all(READY in self._output(name) for name in self._processes):
                self._start_playing()
            if running and time.monotonic() >= deadline_s:
                raise RunError(f"took longer than run_limit_s, {limit_s:g} s: shorten the run, or increase the limit")
            if running:
                time.sleep(_POLL_INTERVAL_S)

    def __exit__(self, *_: object) -> None:
        try:
            for process in self._processes.values():
                process.terminate()
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TERMINATE_TIMEOUT_S)
        finally:  # Also after a second Ctrl-C, so that no process is left.
            for process in self._processes.values():
                process.kill()
                process.wait()
                if process.stdin is not None:
                    with suppress(OSError):
                        process.stdin.close()

    def _start_playing(self) -> None:
        self._has_started = True
        for process in self._processes.values():
            assert process.stdin is not None
            with suppress(OSError):  # `wait` reports a vehicle that has ended.
                process.stdin.write(b"go\n")
                process.stdin.flush()

    def _output(self, name: str) -> str:
        return self._logs[name].read_text(encoding="utf-8", errors="replace")

    def _last_line(self, name: str) -> str:
        lines = self._output(name).strip().splitlines()
        return lines[-1].removeprefix("skylane: ") if lines else "no output"
