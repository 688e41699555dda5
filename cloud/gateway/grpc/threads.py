"""The threads of the gRPC server: a bounded pool that keeps working when no more threads can be started."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from shared.logs import RateLimitedLogger, get_logger
from shared.runtime.machine import usable_cores
from shared.threads import ThreadsExhaustedError, is_thread_limit

P = ParamSpec("P")
T = TypeVar("T")

_SPARE_THREADS = 32  # Threads for calls that fail immediately.
_LIBRARY_THREADS = 16  # Threads of the grpcio library, except one per core, and of the check for overdue calls.


def max_streams_of(max_calls: int) -> int:
    """Returns the limit of open streams for a limit of concurrent calls."""
    return max(1, max_calls // 4)


def max_grpc_threads(max_calls: int) -> int:
    """Returns the maximum number of threads: the pool, a reader per stream, and the threads of grpcio."""
    return _pool_size(max_calls) + max_streams_of(max_calls) + _LIBRARY_THREADS + usable_cores()


class GrpcThreadPool(ThreadPoolExecutor):
    """The pool in which calls are processed; if no thread can be started, calls wait for the existing ones."""

    def __init__(self, max_calls: int) -> None:
        """Starts one thread.

        Raises:
            ThreadsExhaustedError: no thread can be started.
        """
        super().__init__(_pool_size(max_calls), "grpc")
        self._log = RateLimitedLogger(get_logger("cloud"))
        try:
            super().submit(int).result()
        except RuntimeError as error:
            raise (ThreadsExhaustedError() if is_thread_limit(error) else error) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `ThreadPoolExecutor`. An exception here would end the thread in which grpcio accepts calls."""
        future: Future[T] = Future()
        try:
            super().submit(_complete, future, partial(fn, *args, **kwargs))
        except RuntimeError as error:
            if not is_thread_limit(error):
                raise
            # The executor has queued the call before it tried to start a thread for it.
            self._log.warning("threads", "gRPC calls wait for a thread", reason=str(ThreadsExhaustedError()))
        return future


def _complete(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  It is raised where the future's result is read.
        future.set_exception(error)


def _pool_size(max_calls: int) -> int:
    return max_calls + max_streams_of(max_calls) + _SPARE_THREADS
