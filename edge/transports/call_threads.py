"""Threads for calls that block until they are answered."""

import logging
import queue
import threading
import time
from collections.abc import Callable

_JOIN_S = 0.5
_LOG = logging.getLogger("skylane.edge")


class CallThreads:
    """Runs calls on at most `most` threads; a thread starts when a call finds none idle.

    A `ThreadPoolExecutor` would keep Python from exiting while a call hangs. These threads do not.
    """

    def __init__(self, name: str, most: int) -> None:
        """`name`: the prefix of the threads' names."""
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None: end.
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def run(self, call: Callable[[], None]) -> None:
        """Run the call on a thread; returns at once. After `close` nothing runs.

        Raises:
            RuntimeError: the first thread cannot be started.
        """
        with self._lock:
            if self._is_closed:
                return
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                self._start()
            self._calls.put(call)

    def close(self) -> None:
        """End the threads, and wait up to half a second for calls that run. Calls that wait are forgotten."""
        with self._lock:
            self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)
        until_s = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The system has no more threads: the call waits for one that runs.
            if not self._threads:
                raise
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closed:
            try:
                call()
            except Exception:  # noqa: BLE001  One answer must not end the thread that others wait for.
                _LOG.exception("The handling of an answer failed: its frame counts as unanswered.")
            del call  # A frame's megabytes.
            self._idle.release()
