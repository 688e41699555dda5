"""Why a call is refused, in the words of no protocol; each face says it in its own form and code."""

from enum import Enum

from shared.errors import SkylaneError
from shared.messages.frame import Status


class Kind(Enum):
    """What is wrong with a call: HTTP's status and gRPC's code for it."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED")
    FORBIDDEN = (403, "PERMISSION_DENIED")
    NOT_FOUND = (404, "NOT_FOUND")
    LATE = (408, "DEADLINE_EXCEEDED")  # The caller's own deadline has passed.
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    UNSUPPORTED = (415, "INVALID_ARGUMENT")
    UNPROCESSABLE = (422, "INVALID_ARGUMENT")  # It can be read, but no picture can be made of it.
    BUSY = (429, "RESOURCE_EXHAUSTED")
    FAILED = (500, "INTERNAL")
    UNIMPLEMENTED = (501, "UNIMPLEMENTED")  # A part of a protocol that is not spoken here.
    STOPPING = (503, "UNAVAILABLE")

    @property
    def http_status(self) -> int:
        """Of the HTTP response."""
        return self.value[0]

    @property
    def grpc_code(self) -> str:
        """The name of a `grpc.StatusCode`."""
        return self.value[1]


_BY_STATUS = {
    Status.EXPIRED: Kind.LATE,
    Status.OVERLOADED: Kind.BUSY,
    Status.REJECTED: Kind.UNPROCESSABLE,
    Status.FAILED: Kind.FAILED,
}


class RefusedError(SkylaneError):
    """A call that is not answered with a result; the message says what was given and what is expected."""

    def __init__(self, kind: Kind, message: str) -> None:
        self.kind = kind
        super().__init__(message)

    @classmethod
    def by_status(cls, status: Status, reason: str) -> "RefusedError":
        """What became of a frame, as the refusal of the call that brought it."""
        return cls(_BY_STATUS[status], reason or status.value)
