"""Threads for calls that wait for their answers: as many as calls are under way, up to a number.

Of those that are idle the last one to have become so makes the next call: its memory is at hand, and that of the others need not
be. What nobody waits for is done by the same threads, behind the answer.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class _Seat:
    """Where a thread finds its next call."""

    call: Callable[[], None] | None = None  # None, as it is woken: there will be no more.
    woken: threading.Lock = field(default_factory=threading.Lock)  # Held while there is nothing to do.


class CallThreads:
    """Runs calls, each on a thread of its own while there is one. Whoever hangs at the end holds nobody up.

    That is what a `ThreadPoolExecutor` does not: Python waits for its threads before it ends.
    """

    def __init__(self, name: str, most: int, on_fault: OnFault | None = None) -> None:
        """`on_fault`: told of what goes wrong behind a call; None: that ends its thread."""
        self._name = name
        self._most = most
        self._on_fault = on_fault
        self._waiting: deque[Callable[[], None]] = deque()  # For a thread, while there can be no more of them.
        self._idle: list[_Seat] = []  # The last one to have become so at the end.
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def run(self, call: Callable[[], None]) -> None:
        """Have a thread make the call; returns at once. Nothing is done once it is closed."""
        with self._lock:
            if self._closed:
                return
            if not self._idle:
                try:
                    self._begin(call)
                except RuntimeError:
                    self._waiting.pop()
                    raise
                return
            seat = self._idle.pop()
            seat.call = call
            seat.woken.release()

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `run`, and tell what came of it, if anything."""
        future: Future[T] = Future()
        self.run(partial(_settle, future, partial(call, *args, **kwargs)))
        return future

    def close(self) -> None:
        """Take no more, forget what waits, and wait for a moment for those that are under way."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            idle, self._idle = self._idle, []
        for seat in idle:
            seat.woken.release()
        until_s = time.monotonic() + _JOIN_S
        for thread in tuple(self._threads):
            thread.join(max(0.0, until_s - time.monotonic()))

    def _begin(self, call: Callable[[], None]) -> None:
        """Have a new thread make the call, or the next one that has done with its own; the lock is held."""
        if len(self._threads) >= self._most:
            self._waiting.append(call)
            return
        seat = _Seat(call)
        seat.woken.acquire()
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(seat,), name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # There can be no more. It waits for those that there are.
            self._threads.remove(thread)
            self._waiting.append(call)
            if not self._threads:
                raise

    def _work(self, seat: _Seat) -> None:
        while seat.call is not None:
            try:
                self._make(seat.call)
            except BaseException:
                with self._lock:
                    self._threads.remove(threading.current_thread())  # Another takes its place.
                    if self._waiting:
                        with suppress(RuntimeError):  # Then it waits for one that a later call begins.
                            self._begin(self._waiting.popleft())
                raise
            with self._lock:
                seat.call = self._waiting.popleft() if self._waiting else None  # A frame's megabytes are not kept.
                if seat.call is not None:
                    continue
                if self._closed:
                    return
                self._idle.append(seat)
            seat.woken.acquire()

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
