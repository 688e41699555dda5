"""Errors of requests and calls: their codes in HTTP and gRPC, and counts and logs of the unexpected ones.

The gateway sends the codes: `http/server.py`, `grpc/server.py`.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import ParamSpec

from shared import clock
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.messages.frame import Status


class ErrorCode(Enum):
    """The reason for an error, with its HTTP status and the name of its `grpc.StatusCode`."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED")
    FORBIDDEN = (403, "PERMISSION_DENIED")
    NOT_FOUND = (404, "NOT_FOUND")
    LATE = (408, "DEADLINE_EXCEEDED")  # The caller's own deadline has passed.
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    UNSUPPORTED = (415, "INVALID_ARGUMENT")
    UNPROCESSABLE = (422, "INVALID_ARGUMENT")  # The request is well formed, but its image cannot be processed.
    BUSY = (429, "RESOURCE_EXHAUSTED")
    FAILED = (500, "INTERNAL")
    UNIMPLEMENTED = (501, "UNIMPLEMENTED")  # A part of a protocol that the worker does not support.
    STOPPING = (503, "UNAVAILABLE")

    def __init__(self, http_status: int, grpc_code: str) -> None:
        self.http_status = http_status
        self.grpc_code = grpc_code


_CODE_OF_STATUS = {
    Status.EXPIRED: ErrorCode.LATE,
    Status.OVERLOADED: ErrorCode.BUSY,
    Status.REJECTED: ErrorCode.UNPROCESSABLE,
    Status.FAILED: ErrorCode.FAILED,
}


class ApiError(SkylaneError):
    """A call that fails; the message says what was received and what is expected."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        super().__init__(message)

    @classmethod
    def from_status(cls, status: Status, reason: str) -> "ApiError":
        """Creates the error for a frame that was not answered with a result."""
        return cls(_CODE_OF_STATUS[status], reason or status.value)


class InvalidError(ApiError):
    """A request that is malformed or has invalid values."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID, message)


@contextmanager
def converting_errors(
    code: ErrorCode, prefix: str = "", errors: tuple[type[Exception], ...] = (SkylaneError,)
) -> Iterator[None]:
    """Converts exceptions of the types `errors` to an `ApiError` with the same message."""
    try:
        yield
    except ApiError:
        raise
    except errors as error:
        raise ApiError(code, f"{prefix}{error}") from error


P = ParamSpec("P")

UNHEALTHY_ERRORS = 10  # Errors within one minute from which the worker reports itself unhealthy.

_MINUTE_NS = 60_000_000_000
_MAX_LOGGED = 20  # Tracebacks written to the log in one minute; further errors are only counted.
_LOG = get_logger("cloud")


class RequestErrors:
    """Counts unexpected exceptions by stage and logs their tracebacks. Thread-safe.

    Known errors of a request are `SkylaneError`s and are not recorded here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._recent_ns: deque[int] = deque(maxlen=max(UNHEALTHY_ERRORS, _MAX_LOGGED))  # Times of the last errors.

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of errors since the worker started, by stage."""
        with self._lock:
            return dict(self._counts)

    @property
    def is_healthy(self) -> bool:
        """True if fewer than `UNHEALTHY_ERRORS` occurred within the last minute."""
        with self._lock:
            return self._within_minute(clock.now_ns()) < UNHEALTHY_ERRORS

    def record(self, stage: str, error: Exception) -> None:
        """Counts an error and logs its traceback. `stage` is the part of the worker that raised it."""
        now_ns = clock.now_ns()
        with self._lock:
            self._counts[stage] += 1
            is_logged = self._within_minute(now_ns) < _MAX_LOGGED
            self._recent_ns.append(now_ns)
        if is_logged:
            _LOG.error("unexpected error, only this request fails", stage=stage, exc_info=error)

    def guarded(self, stage: str, handler: Callable[P, None]) -> Callable[P, None]:
        """Wraps a handler so that exceptions are recorded and not raised."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                handler(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  One message must not stop the worker.
                self.record(stage, error)

        return call

    def _within_minute(self, now_ns: int) -> int:
        return sum(now_ns - at_ns < _MINUTE_NS for at_ns in self._recent_ns)
