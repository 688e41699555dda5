"""A bidirectional gRPC stream: requests are begun as they arrive and answered in the order in which they finish."""

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.grpc.call import GrpcCall
from cloud.gateway.grpc.limits import ActiveCall, TokenBucket
from cloud.gateway.grpc.service import PendingAnswer, RequestHandler
from shared import clock

MAX_PENDING = 16  # Requests of one stream that are being answered; further ones wait in the network.
MAX_FAILURES_PER_S = 10.0  # Of one stream on average, beyond
MAX_FAILURES = 16  # at once: answered requests limit themselves, refused ones cost their caller nothing.

_CHECK_INTERVAL_S = 0.5  # How often a waiting stream looks whether the worker is stopping.


class RequestStream:
    """One stream, from its first message to its last answer. A thread of its own reads the requests."""

    def __init__(
        self,
        handler: RequestHandler,
        context: grpc.ServicerContext,
        active: ActiveCall,
        *,
        stopping: threading.Event,
        max_idle_s: float,
        max_send_s: float,
    ) -> None:
        """`stopping` is set when the worker takes no more requests.

        `max_idle_s`: without any request. `max_send_s`: that the caller may take to receive an answer.
        """
        self._handler = handler
        self._context = context
        self._active = active
        self._stopping = stopping
        self._max_idle_s = max_idle_s
        self._max_send_s = max_send_s
        self._last_ns = clock.now_ns()  # When a request or an answer last passed.
        self._slots = threading.Semaphore(MAX_PENDING)
        self._pending: dict[PendingAnswer, int] = {}  # With the size of the request in bytes.
        self._finished: queue.SimpleQueue[PendingAnswer | None] = queue.SimpleQueue()  # None: the reader has ended.
        self._problem: Exception | None = None  # What ended the reader.
        self._is_over = threading.Event()

    def answers(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """Yields each answer as it is ready.

        Raises:
            RefusedError: the worker is stopping, the stream was idle for too long, or requests arrive too fast.
        """
        if not self._context.add_callback(self._cancel):
            return
        reader = threading.Thread(target=self._read, args=(requests,), name="grpc-stream", daemon=True)
        reader.start()
        is_read = False
        try:
            while not (is_read and not self._pending):
                finished = self._next()
                if finished is None:
                    is_read = True
                    if self._problem is not None:
                        raise self._problem
                    continue
                answer = finished.answer()
                self._active.wait_for_caller(self._max_send_s)
                yield answer
                self._last_ns = clock.now_ns()
                self._active.release(self._pending.pop(finished))
                self._slots.release()
                self._mark_idle()
        finally:
            self._cancel()

    def _next(self) -> PendingAnswer | None:
        while True:
            if not self._pending:
                if self._stopping.is_set():
                    raise RefusedError(Kind.STOPPING, "the worker is stopping: ask another one")
                if clock.now_ns() - self._last_ns > self._max_idle_s * 1e9:
                    raise RefusedError(Kind.LATE, f"nothing came for {self._max_idle_s:g} s: open another stream")
            try:
                return self._finished.get(timeout=_CHECK_INTERVAL_S)
            except queue.Empty:
                continue

    def _read(self, requests: Iterator[bytes]) -> None:
        """Begins every request that arrives, as long as there are slots; the body of a thread."""
        refusals = TokenBucket(MAX_FAILURES_PER_S, MAX_FAILURES)
        try:
            while self._slots.acquire() and not self._is_over.is_set():
                self._mark_idle()
                data = next(requests, None)
                if data is None:
                    return
                self._last_ns = clock.now_ns()
                self._active.work()
                self._begin(GrpcCall(data, self._last_ns, self._context), refusals)
        except grpc.RpcError:
            return  # The caller has gone.
        except Exception as error:  # noqa: BLE001  Raised again by the thread that answers.
            self._problem = error
        finally:
            self._finished.put(None)

    def _mark_idle(self) -> None:
        """Lets the stream be evicted while no request of it is under way."""
        if not self._pending:
            self._active.wait_for_caller(None)

    def _begin(self, call: GrpcCall, refusals: TokenBucket) -> None:
        self._active.hold(len(call.data))
        pending = self._handler.begin(call)
        if not pending.futures and not refusals.take():
            raise RefusedError(Kind.BUSY, "too many requests of this stream were refused: send what can be answered")
        self._pending[pending] = len(call.data)
        done = itertools.count(1)

        def one_done(_: Any = None) -> None:
            if next(done) >= len(pending.futures):
                self._finished.put(pending)

        for future in pending.futures:
            future.add_done_callback(one_done)
        if not pending.futures:
            one_done()
        if self._is_over.is_set():
            _cancel(pending)

    def _cancel(self) -> None:
        """Ends the reader and gives up what has not begun."""
        self._is_over.set()
        for pending in list(self._pending):
            _cancel(pending)
        self._slots.release()


def _cancel(pending: PendingAnswer) -> None:
    for future in pending.futures:
        future.cancel()
