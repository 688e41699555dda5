"""A conversation: a gRPC stream of calls, each answered in it as soon as that can be.

One thread reads messages and begins what they ask for, the stream's own sends what is done. A bounded number of calls is
under way; what comes beyond waits in the network.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from cloud.gateway.grpc_call import GrpcCall
from cloud.gateway.grpc_context import Context
from cloud.gateway.outbox import GoneError
from cloud.gateway.refusal import Kind, RefusedError
from shared import clock
from shared.call_threads import CallThreads
from shared.compression import Buffer

MOST_UNDER_WAY = 16  # Calls of one stream.

_LOOK_S = 0.5  # How often it is looked whether the worker is stopping, and for how long nothing was said.


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A call under way."""

    futures: Sequence[Future[Any]]  # All are done when it can be answered; cancelled where nobody waits any more.
    answer: Callable[[], Sequence[Buffer]]  # Then its answer as a message in parts, which tells of a refusal too.


class Speaker(Protocol):
    """What a conversation is about."""

    def begin(self, call: GrpcCall) -> Begun:
        """Begin what a message asks for."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all conversations have in common."""

    threads: CallThreads  # With one that reads for each of them.
    stopping: threading.Event  # Set when the worker takes no more.
    silent_s: float  # After which one ends: whose message comes byte by byte looks like who says nothing.


class Conversation:
    """One stream, from its first message to its last answer."""

    def __init__(self, speaker: Speaker, context: Context, terms: Terms) -> None:
        self._speaker = speaker
        self._context = context
        self._terms = terms
        self._room = threading.Semaphore(MOST_UNDER_WAY)
        self._under_way: dict[Begun, int] = {}  # With the bytes that its message holds.
        self._done: queue.SimpleQueue[Begun | None] = queue.SimpleQueue()  # None: something else has changed.
        self._is_read = self._is_over = False
        self._last_ns = clock.now_ns()

    def answers(self) -> Iterator[Sequence[Buffer]]:
        """Each call's answer as it is done.

        Raises:
            RefusedError: the caller has gone, the worker is stopping, or nothing was said for too long.
        """
        if not self._context.when_over(self._end):
            return
        reading = self._terms.threads.submit(self._read)
        try:
            while not self._is_over and not (self._is_read and not self._under_way):
                begun = self._next()
                if begun is not None and not self._is_over:
                    yield begun.answer()
                    self._context.share.give_back(self._under_way.pop(begun))
                    self._room.release()
                    self._last_ns = clock.now_ns()
            if self._is_read:
                reading.result()  # Raises what was a fault of ours.
            if self._is_over:
                raise RefusedError(Kind.LATE, "the caller has gone, or its deadline has passed")
        finally:
            self._end()

    def _next(self) -> Begun | None:
        """The next call that is done; None: look again."""
        if not self._under_way:
            if self._terms.stopping.is_set():
                raise RefusedError(Kind.STOPPING, "the worker is stopping: ask another one")
            if clock.now_ns() - self._last_ns > self._terms.silent_s * 1e9:
                raise RefusedError(Kind.LATE, f"nothing came for {self._terms.silent_s:g} s: open another stream")
        try:
            return self._done.get(timeout=_LOOK_S)
        except queue.Empty:
            return None

    def _read(self) -> None:
        """Begin every call that comes, as long as there is room; the body of a thread."""
        try:
            messages = self._context.messages()
            while self._room.acquire() and not self._is_over:
                message = next(messages, None)
                if message is None:
                    return
                self._last_ns = message.received_ns
                self._begin(GrpcCall(message.data, message.received_ns, self._context), message.held)
        except GoneError:
            return
        finally:
            self._is_read = True
            self._done.put(None)

    def _begin(self, call: GrpcCall, held: int) -> None:
        begun = self._speaker.begin(call)
        self._under_way[begun] = held
        done = itertools.count(1)

        def one_done(_: Future[Any] | None = None) -> None:
            if next(done) >= len(begun.futures):
                self._done.put(begun)

        for future in begun.futures:
            future.add_done_callback(one_done)
        if not begun.futures:
            one_done()
        if self._is_over:  # It has become so since it was looked.
            _cancel(begun)

    def _end(self) -> None:
        """Nobody waits any more: what has not begun need not be done."""
        self._is_over = True
        for begun in list(self._under_way):
            _cancel(begun)
        self._room.release()
        self._done.put(None)


def _cancel(begun: Begun) -> None:
    for future in begun.futures:
        future.cancel()
