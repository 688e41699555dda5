"""Named threads that belong together: a bug in one stops them all, and the main thread tells it."""

import os
import threading
from collections.abc import Callable

from shared.errors import SkylaneError


class ThreadGroup:
    """Starts threads and keeps the first thing that went wrong in any of them."""

    def __init__(self, on_fault: Callable[[], None]) -> None:
        """`on_fault` is called once, by the failing thread: it should make the others end."""
        self._on_fault = on_fault
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._first: BaseException | None = None

    def start(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Run `body` in a thread of this name."""
        thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def fault(self, error: BaseException) -> None:
        """Something went wrong in a thread; the first to say so is heard."""
        with self._lock:
            if self._first is not None:
                return
            self._first = error
        self._on_fault()

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._first is not None:
            raise self._first

    def join(self, timeout_s: float) -> None:
        """Wait for all of them, at most `timeout_s` each.

        Raises:
            SkylaneError: one does not end; it is named.
        """
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                raise SkylaneError(f"thread {thread.name} did not end within {timeout_s:g} s of being asked to")
        self.check()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the main thread raises it again)
            self.fault(error)


def step_back() -> None:
    """Give the calling thread, and those it starts, the lowest priority: what is measured goes first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
