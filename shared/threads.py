"""Groups of named threads, thread limits, and bounded queues between threads."""

import os
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from shared.errors import SkylaneError

T = TypeVar("T")

_NO_THREAD = "can't start new thread"  # CPython's message.
_POLL_S = 0.2  # Interval at which a waiting writer checks whether its reader is alive.

_abandoned: list[threading.Thread] = []


class ThreadsExhaustedError(SkylaneError):
    """The system allows no more threads."""

    def __init__(self) -> None:
        super().__init__(
            "threads exhausted: raise the container's pids_limit (outside of one, 'ulimit -u'), or lower --threads"
        )


def is_thread_limit(error: BaseException) -> bool:
    """Returns whether an exception means that a system limit prevented a new thread or process."""
    return isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)


def check_threads_available(count: int) -> None:
    """Checks, by starting them, that `count` more threads are allowed; C++ libraries would abort the process instead.

    Raises:
        ThreadsExhaustedError: the system's limits allow fewer.
    """
    released = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=released.wait, name="thread-check", daemon=True)
            _start(thread)
            started.append(thread)
    finally:
        released.set()
        for thread in started:
            thread.join()


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise ThreadsExhaustedError from error


class ThreadGroup:
    """Starts threads and keeps the first exception of any of them, which `check` and `join` raise again."""

    def __init__(self, on_fault: Callable[[], None]) -> None:
        """`on_fault` is called once, by the first thread that fails; it should make the others end."""
        self._on_fault = on_fault
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._first: BaseException | None = None

    def start(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Runs `body` in a thread called `name`.

        Raises:
            ThreadsExhaustedError: the system allows no more threads.
        """
        thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)
        with self._lock:
            _start(thread)
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        return thread

    def fault(self, error: BaseException) -> None:
        """Records an exception; only the first one counts."""
        with self._lock:
            if self._first is not None:
                return
            self._first = error
        self._on_fault()

    def check(self) -> None:
        """Raises the first exception, if there was one."""
        if self._first is not None:
            raise self._first

    def join(self, timeout_s: float) -> None:
        """Waits for all threads, at most `timeout_s` for each, and raises the first exception.

        Raises:
            SkylaneError: a thread does not end; the message names it.
        """
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                self.check()
                raise SkylaneError(f"thread {thread.name} did not end within {timeout_s:g} s of being asked to")
        self.check()

    def abandon(self) -> None:
        """Abandons the threads that still run, because they hang in a library; see `end_process_if_threads_hang`.

        They get the lowest priority, because a library that loops would take the time of a core from other threads.
        """
        for thread in self._threads:
            if thread.is_alive() and thread.native_id is not None:
                _abandoned.append(thread)
                lower_priority(thread.native_id)

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 (the main thread raises it again)
            self.fault(error)


def end_process_if_threads_hang(exit_code: int) -> None:
    """Ends the process at once if an abandoned thread still runs: otherwise C++ aborts the process while Python ends."""
    if any(thread.is_alive() for thread in _abandoned):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


class Counts:
    """Counters by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Increments a counter."""
        with self._lock:
            self._counts[name] += 1

    def by_name(self) -> dict[str, int]:
        """Returns a consistent copy of all counters."""
        with self._lock:
            return dict(self._counts)


class BoundedQueue(Generic[T]):
    """A bounded FIFO queue between threads, with one or several readers.

    After a reader has ended, `put` no longer waits and drops its item.
    """

    def __init__(self, size: int) -> None:
        self._queue: queue.Queue[T | None] = queue.Queue(size)
        self._abandoned = threading.Event()

    @property
    def depth(self) -> int:
        """Number of waiting items."""
        return self._queue.qsize()

    def put(self, item: T | None) -> None:
        """Adds an item; waits while the queue is full. None closes the queue."""
        while not self._abandoned.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def offer(self, item: T) -> bool:
        """Adds an item without waiting; returns False if the queue is full."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Ends the readers after the items in the queue."""
        self.put(None)

    @contextmanager
    def reader(self) -> Iterator[Callable[..., T | None]]:
        """Yields `get(timeout=None)`, which returns the next item, or None once the queue is closed.

        `get` raises `queue.Empty` after its timeout, in seconds.
        """
        try:
            yield self._get
        finally:
            self._abandoned.set()

    def _get(self, timeout: float | None = None) -> T | None:
        item = self._queue.get(timeout=timeout)
        if item is None:
            with suppress(queue.Full):
                self._queue.put_nowait(None)  # Ends the other readers.
        return item


def lower_priority(native_id: int | None = None, niceness: int = 19) -> None:
    """Gives a thread, by default the calling one, and threads that it starts, a lower priority, by default the lowest.

    Measured work runs first then. `niceness`: 1 to 19; a busy core gives a thread of 5 a third of the time of one of 0.
    """
    thread = native_id or threading.get_native_id()
    with suppress(ProcessLookupError):  # The thread has just ended.
        if os.getpriority(os.PRIO_PROCESS, thread) < niceness:  # Only root may raise the priority of a nice process.
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


@contextmanager
def unchanged_scheduling() -> Iterator[None]:
    """Restores the calling thread's scheduling after the block, and applies it to threads that the block started.

    On Linux, a library that runs as root can make its threads and its caller's real-time ones, which keep all others waiting.
    """
    if sys.platform != "linux":
        yield
        return
    before, policy, parameters = _native_ids(), os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for native_id in (0, *(_native_ids() - before)):
            with suppress(ProcessLookupError):  # The thread has just ended.
                os.sched_setscheduler(native_id, policy, parameters)


def _native_ids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208 - names, not paths.
