"""Threads for calls that wait for their answers: as many as calls are under way, up to a number.

What nobody waits for is done by the same threads, behind the answer.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

OnFault = Callable[[BaseException], None]

P = ParamSpec("P")
T = TypeVar("T")

_JOIN_S = 0.5

_left = threading.local()  # By a thread that makes a call, as `acts`: what is left to do behind it.


def afterwards(act: Callable[[], None]) -> None:
    """Do what nobody waits for: behind the call that this thread makes, or at once where it makes none.

    Of a call that answers, the answer is on its way by then.
    """
    acts: list[Callable[[], None]] | None = getattr(_left, "acts", None)
    if acts is None:
        act()
    else:
        acts.append(act)


class CallThreads:
    """Runs calls, each on a thread of its own while there is one. Whoever hangs at the end holds nobody up.

    That is what a `ThreadPoolExecutor` does not: Python waits for its threads before it ends.
    """

    def __init__(self, name: str, most: int, on_fault: OnFault | None = None) -> None:
        """`on_fault`: told of what goes wrong behind a call; None: that ends its thread."""
        self._name = name
        self._most = most
        self._on_fault = on_fault
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._calls = 0  # That wait or run.
        self._closed = False

    def run(self, call: Callable[[], None]) -> None:
        """Have a thread make the call; returns at once. Nothing is done once it is closed."""
        with self._lock:
            if self._closed:
                return
            self._calls += 1
            if self._calls > len(self._threads) < self._most:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                try:
                    thread.start()
                except RuntimeError:  # There can be no more. It waits for those that there are.
                    self._threads.remove(thread)
                    if not self._threads:
                        self._calls -= 1
                        raise
        self._waiting.put(call)

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `run`, and tell what came of it, if anything."""
        future: Future[T] = Future()
        self.run(partial(_settle, future, partial(call, *args, **kwargs)))
        return future

    def close(self) -> None:
        """Take no more, forget what waits, and wait for a moment for those that are under way."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        until_s = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            try:
                if not self._closed:
                    self._make(call)
            except BaseException:
                with self._lock:
                    self._threads.remove(threading.current_thread())  # Another takes its place.
                raise
            finally:
                del call  # What it holds, a frame's megabytes, is not kept until the next one comes.
                with self._lock:
                    self._calls -= 1

    def _make(self, call: Callable[[], None]) -> None:
        acts: list[Callable[[], None]] = []
        _left.acts = acts
        try:
            call()
        finally:
            _left.acts = None
            for act in acts:
                self._do(act)

    def _do(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            if self._on_fault is None:
                raise
            self._on_fault(error)


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (whatever it is, the future tells it)
        future.set_exception(error)
