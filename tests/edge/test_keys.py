"""The keys of a terminal, in a real one."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edge.progress import RIGHT, reading_keys
from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, threading
from edge.progress import RIGHT, reading_keys
from tests.support.terminal import Terminal
done = threading.Event()
keys = {" ": "pause", RIGHT: "step", "+": "faster", "-": "slower"}
actions = {key: lambda name=name: print(name, flush=True) for key, name in keys.items()}
with reading_keys({**actions, "x": done.set}) as found:
    print("keys" if found else "no keys", flush=True)
    if found:
        done.wait()
"""


@pytest.fixture
def keyed() -> Iterator[Terminal]:
    """A program that writes what the keys ask for, until x."""
    terminal = Terminal("-c", PROGRAM)
    terminal.read_until("keys\r\n")
    yield terminal
    with suppress(ProcessLookupError):
        os.kill(terminal.process, signal.SIGKILL)
    terminal.end()


def test_each_key_has_its_action(keyed: Terminal) -> None:
    """Keys of other meaning, and parts of them, do nothing."""
    assert not keyed.echoes
    keyed.press(f" {RIGHT}+-q\x1b[A\x1b\u00e9x")
    assert keyed.end() == 0
    assert keyed.text.split() == ["keys", "pause", "step", "faster", "slower"]


def test_ctrl_c_interrupts_as_ever(keyed: Terminal) -> None:
    """The terminal still turns it into a signal."""
    keyed.press("\x03")
    assert keyed.end() != 0
    assert "KeyboardInterrupt" in keyed.text


def test_without_a_terminal_there_are_no_keys() -> None:
    """A pipe, nothing at all, or a program without actions."""
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdin=stdin, capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert ended.stdout == "no keys\n"
    with reading_keys({}) as found:
        assert not found
    assert "keys" not in {thread.name for thread in threading.enumerate()}
