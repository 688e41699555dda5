"""Errors of calls, and their codes in HTTP and gRPC.

The gateway sends the codes: `http/server.py`, `grpc/server.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from shared.errors import SkylaneError
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
