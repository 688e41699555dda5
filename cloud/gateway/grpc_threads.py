"""The threads of the gRPC server: a bounded pool that goes on where the system allows no more of them."""

from concurrent.futures import ThreadPoolExecutor

from shared.logs import RateLimitedLogger, get_logger
from shared.machine import usable_cores
from shared.threads import ThreadsExhaustedError, is_thread_limit

_SPARE_THREADS = 32  # For calls that are refused at once.
_OWN_THREADS = 16  # Those of the grpcio library beside one a core, and the check for overdue calls.


def most_streams(max_calls: int) -> int:
    """How many streams may be open at a time where so many calls are answered at a time."""
    return max(1, max_calls // 4)


def most_grpc_threads(max_calls: int) -> int:
    """The most threads that the server starts: its pool, a reader for each stream, and those of the library."""
    return _pool_size(max_calls) + most_streams(max_calls) + _OWN_THREADS + usable_cores()


class GrpcThreads(ThreadPoolExecutor):
    """The pool in which calls are answered; it makes do with the threads it has where it cannot start more."""

    def __init__(self, max_calls: int) -> None:
        """Starts one thread.

        Raises:
            ThreadsExhaustedError: the system allows none.
        """
        super().__init__(_pool_size(max_calls), "grpc")
        self._log = RateLimitedLogger(get_logger("cloud"))
        self.submit(int).result()

    def _adjust_thread_count(self) -> None:
        """See ThreadPoolExecutor; an exception here would end the thread in which grpcio takes calls."""
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not is_thread_limit(error):
                raise
            if not self._threads:
                raise ThreadsExhaustedError from error
            self._log.warning("threads", "gRPC calls wait for a thread", reason=str(ThreadsExhaustedError()))


def _pool_size(max_calls: int) -> int:
    return max_calls + most_streams(max_calls) + _SPARE_THREADS
