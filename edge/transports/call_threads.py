"""Worker threads for blocking calls."""

import logging
import queue
import threading
from collections.abc import Callable

from shared.messages.deadline import Deadline

_CLOSE_TIMEOUT_S = 0.5
_LOG = logging.getLogger("skylane.edge")


class CallThreads:
    """Runs blocking calls on a bounded number of daemon threads, and starts a thread only if none is idle.

    Unlike those of a `ThreadPoolExecutor`, these threads do not keep Python from exiting while a call hangs.
    """

    def __init__(self, name: str, max_threads: int) -> None:
        """`name`: prefix of the threads' names."""
        self._name = name
        self._max_threads = max_threads
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None ends a thread.
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def run(self, call: Callable[[], None]) -> None:
        """Queues a call; returns at once. Does nothing after `close`.

        Raises:
            RuntimeError: the first thread cannot be started.
        """
        with self._lock:
            if self._is_closed:
                return
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_threads:
                self._start()
            self._calls.put(call)

    def close(self) -> None:
        """Ends the threads, waits up to half a second for calls in progress, and discards queued calls."""
        with self._lock:
            self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)
        deadline = Deadline.after_ms(_CLOSE_TIMEOUT_S * 1e3)
        for thread in self._threads:
            thread.join(deadline.remaining_s())

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The system allows no more threads: the call waits for a running one.
            if not self._threads:
                raise
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closed:
            try:
                call()
            except Exception:  # noqa: BLE001  Later calls still need this thread.
                _LOG.exception("reply ignored, its handler failed")
            del call  # It may hold megabytes of a frame.
            self._idle.release()
