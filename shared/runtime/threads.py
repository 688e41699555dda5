"""Named threads that belong together: a bug in one stops them all, and the main thread tells it."""

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from shared.errors import SkylaneError

T = TypeVar("T")

_NO_THREAD = "can't start new thread"  # CPython's message.

_LOOK_S = 0.2  # How often a waiting writer looks whether its reader still lives.


class ThreadsExhaustedError(SkylaneError):
    """The system lets this process start no more threads."""

    def __init__(self) -> None:
        super().__init__(
            "threads exhausted: raise the container's pids_limit (outside of one, 'ulimit -u'), or lower --threads"
        )


def is_thread_limit(error: BaseException) -> bool:
    """Whether an exception reports that no thread or process could be started because of the system's limits."""
    return isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)


def check_threads_available(count: int) -> None:
    """Checks by starting them that so many more threads are allowed; a library in C++ aborts the process otherwise.

    Raises:
        ThreadsExhaustedError: the system's limits allow fewer.
    """
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=done.wait, name="thread-check", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise ThreadsExhaustedError from error
    finally:
        done.set()
        for thread in started:
            thread.join()


class ThreadGroup:
    """Starts threads and keeps the first thing that went wrong in any of them."""

    def __init__(self, on_fault: Callable[[], None]) -> None:
        """`on_fault` is called once, by the failing thread: it should make the others end."""
        self._on_fault = on_fault
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._first: BaseException | None = None

    def start(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Runs `body` in a thread of this name.

        Raises:
            ThreadsExhaustedError: the system allows no more threads.
        """
        thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)
        with self._lock:
            try:
                thread.start()
            except RuntimeError as error:
                if not is_thread_limit(error):
                    raise
                raise ThreadsExhaustedError from error
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
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
                self.check()
                raise SkylaneError(f"thread {thread.name} did not end within {timeout_s:g} s of being asked to")
        self.check()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the main thread raises it again)
            self.fault(error)


class Counts:
    """How often things happened, by name. Any thread may count, and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """It happened once more."""
        with self._lock:
            self._counts[name] += 1

    def by_name(self) -> dict[str, int]:
        """All of them, at one moment."""
        with self._lock:
            return dict(self._counts)


class BoundedQueue(Generic[T]):
    """A bounded queue between threads, which several may read.

    A reader that dies keeps no writer waiting: what is put then is forgotten.
    """

    def __init__(self, size: int) -> None:
        self._queue: queue.Queue[T | None] = queue.Queue(size)
        self._abandoned = threading.Event()

    def put(self, item: T | None) -> None:
        """Queue an item; waits while the queue is full."""
        while not self._abandoned.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_S)
            except queue.Full:
                continue
            return

    def offer(self, item: T) -> bool:
        """Queue an item, or refuse it at once because the queue is full."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """No more items will come."""
        self.put(None)

    @contextmanager
    def reader(self) -> Iterator[Callable[..., T | None]]:
        """Read within the block, by `get()` or `get(timeout=seconds)`, until None says that it is closed.

        `get` raises `queue.Empty` after its timeout.
        """
        try:
            yield self._get
        finally:
            self._abandoned.set()

    def _get(self, timeout: float | None = None) -> T | None:
        item = self._queue.get(timeout=timeout)
        if item is None:
            with suppress(queue.Full):
                self._queue.put_nowait(None)  # The other readers end too.
        return item


def lower_priority() -> None:
    """Give the calling thread, and those it starts, the lowest priority: what is measured goes first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
