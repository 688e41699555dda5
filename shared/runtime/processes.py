"""Termination of this process by signals, and of child processes."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


def on_termination_signals(handler: Handler) -> None:
    """Installs `handler` for SIGINT, SIGTERM and SIGHUP; a SIGHUP that is ignored (nohup) stays ignored."""
    for number in _TERMINATION_SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Raises KeyboardInterrupt on the first termination signal; later ones are ignored, so that cleanup completes.

    For the main thread only.
    """

    def interrupt(*_: object) -> None:
        on_termination_signals(signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _TERMINATION_SIGNALS}
    on_termination_signals(interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminate(process: "subprocess.Popen[Any]", timeout_s: float) -> None:
    """Ends a child process with SIGTERM, then with SIGKILL after `timeout_s`. A second call has no effect."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    finally:  # A second Ctrl-C must not leave the process behind.
        process.kill()
        process.wait()
