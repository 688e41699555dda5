"""A bidirectional gRPC stream: requests are processed concurrently, responses are sent as they finish."""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc

from cloud.gateway.grpc.call import GrpcCall, PendingResponse
from cloud.gateway.limits import ActiveCall, TokenBucket
from cloud.serving.errors import ApiError, ErrorCode
from shared import clock

MAX_PENDING = 16  # Requests of one stream that are being processed; further ones wait in the network.
MAX_FAILURES_PER_S = 10.0  # Average rate of failed requests of one stream: they are cheap to send.
MAX_FAILURES = 16  # Failed requests of one stream in a burst.

_CHECK_INTERVAL_S = 0.5  # Interval at which a stream checks whether it was idle too long, or the worker ends.


class RequestStream:
    """One stream; a separate thread reads its requests."""

    def __init__(self, call: GrpcCall, active: ActiveCall, begin: Callable[[GrpcCall], PendingResponse]) -> None:
        """`begin` starts to process a request."""
        self._call = call
        self._active = active
        self._begin_request = begin
        self._max_idle_s = call.worker.timeouts.stream_idle_s
        self._last_ns = clock.now_ns()  # Time of the last request or response.
        self._slots = threading.Semaphore(MAX_PENDING)
        self._pending: dict[PendingResponse, int] = {}  # The size of each request in bytes.
        self._finished: queue.SimpleQueue[PendingResponse | None] = queue.SimpleQueue()  # None: the reader has ended.
        self._reader_error: Exception | None = None
        self._is_over = threading.Event()

    def responses(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """Yields each response as soon as it is ready.

        Raises:
            ApiError: the worker is stopping, the stream was idle for too long, or too many requests failed.
        """
        if not self._call.context.add_callback(self._cancel):
            return
        reader = threading.Thread(target=self._read, args=(requests,), name="grpc-stream", daemon=True)
        reader.start()
        is_read = False
        try:
            while not (is_read and not self._pending):
                finished = self._next()
                if finished is None:
                    is_read = True
                    if self._reader_error is not None:
                        raise self._reader_error
                    continue
                response = finished.respond()
                self._active.mark_waiting(self._call.worker.timeouts.send_s)
                yield response
                self._last_ns = clock.now_ns()
                self._active.hold(-self._pending.pop(finished))
                self._slots.release()
                self._mark_idle()
        finally:
            self._cancel()

    def _next(self) -> PendingResponse | None:
        while True:
            if not self._pending:
                if self._call.stopping.is_set():
                    raise ApiError(ErrorCode.STOPPING, "the worker is stopping: call another one")
                if clock.now_ns() - self._last_ns > self._max_idle_s * 1e9:
                    raise ApiError(ErrorCode.LATE, f"no request for {self._max_idle_s:g} s: open another stream")
            try:
                return self._finished.get(timeout=_CHECK_INTERVAL_S)
            except queue.Empty:
                continue

    def _read(self, requests: Iterator[bytes]) -> None:
        """Starts the requests as they arrive, within the limit of pending ones; runs in a thread."""
        refusals = TokenBucket(MAX_FAILURES_PER_S, MAX_FAILURES)
        try:
            while self._slots.acquire() and not self._is_over.is_set():
                self._mark_idle()
                data = next(requests, None)
                if data is None:
                    return
                self._last_ns = clock.now_ns()
                self._active.mark_busy()
                self._begin(replace(self._call, data=data, received_ns=self._last_ns), refusals)
        except grpc.RpcError:
            return  # The caller has cancelled.
        except Exception as error:  # noqa: BLE001  The thread that sends responses raises it.
            self._reader_error = error
        finally:
            self._finished.put(None)

    def _mark_idle(self) -> None:
        """Allows the stream to be evicted while it has no pending request."""
        if not self._pending:
            self._active.mark_waiting()

    def _begin(self, call: GrpcCall, refusals: TokenBucket) -> None:
        self._active.hold(len(call.data))
        pending = self._begin_request(call)
        if not pending.futures and not refusals.take(clock.now_ns()):
            raise ApiError(ErrorCode.BUSY, "too many requests of this stream failed: send valid ones")
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
        """Ends the reader and cancels the pending requests."""
        self._is_over.set()
        for pending in list(self._pending):
            _cancel(pending)
        self._slots.release()


def _cancel(pending: PendingResponse) -> None:
    for future in pending.futures:
        future.cancel()
