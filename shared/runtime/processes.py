"""How processes end: this one when it is asked to, a child without leaving one behind."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


def on_termination_signals(handler: Handler) -> None:
    """Have `handler` called when this process is asked to end: by Ctrl-C, SIGTERM, or because its terminal is gone.

    A terminal's end that was told to be ignored (nohup) stays so.
    """
    for number in _END_SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Whatever asks this process to end raises KeyboardInterrupt in the block, once: what is then ended, ends in peace.

    Only the main thread may do so.
    """

    def interrupt(*_: object) -> None:
        on_termination_signals(signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _END_SIGNALS}
    on_termination_signals(interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(process: "subprocess.Popen[Any]", patience_s: float) -> None:
    """End a child: by SIGTERM, and by SIGKILL when it does not end within `patience_s`. Ending twice is no error."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
