"""Threads beside a test, and waits for a condition of which there is no event."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_S = 120.0


def until(condition: Callable[[], object]) -> None:
    """Waits until a condition is true."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never held"
        time.sleep(0.02)


@contextmanager
def beside(*bodies: Callable[[], object]) -> Iterator[None]:
    """Runs each function in a thread of its own beside the block, and waits for their ends after it."""
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
