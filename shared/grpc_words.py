"""gRPC over HTTP/2, as both ends say it: codes, metadata, what announces a message.

See github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md.
"""

import base64
import binascii
import struct

GRPC = "application/grpc"
OK = "OK"
CODES = (
    OK,
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)  # By their numbers.

PREFIX = struct.Struct(">BI")  # Of a message: whether it is compressed, and its length.

_BINARY = "-bin"  # The end of the name of a field that is base64.


def text(value: str | bytes) -> str:
    """A value of metadata as a header field; that of bytes belongs to a name that ends in -bin."""
    return value if isinstance(value, str) else base64.b64encode(value).decode().rstrip("=")


def value(name: str, written: str) -> str | bytes:
    """What a header field says, the last of several joined by commas; nothing where it ought to be base64 and is not."""
    if not name.endswith(_BINARY):
        return written
    written = written.rpartition(",")[2]
    try:
        return base64.b64decode(written + "=" * (-len(written) % 4))
    except (binascii.Error, ValueError):
        return b""
