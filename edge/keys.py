"""Keys of the terminal that control a playback: space pauses, → steps, + and − change the speed."""

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

RIGHT = "\x1b[C"
HELP = "space pauses · → steps · + and − change the speed"

_POLL_S = 0.2
_READ_BYTES = 64


@contextmanager
def reading_keys(actions: Mapping[str, Callable[[], None]]) -> Iterator[bool]:
    """Calls the action of each key that is pressed; yields whether there are actions, and a terminal to read keys from.

    The terminal is as before at the end. A process in the background reads nothing, so that the shell does not stop it.
    """
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if not actions or terminal is None or not _is_in_foreground(terminal):
        yield False
        return
    before = termios.tcgetattr(terminal)
    ended = threading.Event()
    thread = threading.Thread(target=_read, args=(terminal, actions, ended), name="keys", daemon=True)
    try:
        tty.setcbreak(terminal, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z work as ever.
        thread.start()
        yield True
    finally:
        ended.set()
        if _is_in_foreground(terminal):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        thread.join()


def _read(terminal: int, actions: Mapping[str, Callable[[], None]], ended: threading.Event) -> None:
    while not ended.is_set():
        if not _is_in_foreground(terminal):
            ended.wait(_POLL_S)
        elif select.select([terminal], [], [], _POLL_S)[0]:
            pressed = os.read(terminal, _READ_BYTES).decode(errors="ignore")
            if not pressed:
                return  # The terminal is gone.
            while pressed:
                key = next((each for each in actions if pressed.startswith(each)), pressed[0])
                pressed = pressed[len(key) :]
                actions.get(key, lambda: None)()


def _is_in_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
