"""What a gRPC service of the gateway consists of: methods from a call to messages, as bytes."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from cloud.gateway.grpc.call import GrpcCall


@dataclass(frozen=True, slots=True)
class Method:
    """Answers one message with another, or with a stream of such; refuses it by `RefusedError`."""

    answer: Callable[[GrpcCall], Any]
    is_stream: bool = False
    is_open: bool = False  # Needs no token.


@dataclass(frozen=True, slots=True, eq=False)
class PendingAnswer:
    """A request of a stream that is being answered."""

    futures: Sequence[Future[Any]]  # `answer` may be called when all are done; they are cancelled with the stream.
    answer: Callable[[], bytes]  # Returns the answer, which may report a refusal.


class RequestHandler(Protocol):
    """Answers the requests of one stream."""

    def begin(self, call: GrpcCall) -> PendingAnswer:
        """Begins what a message asks for."""


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """Answers a stream of messages with another; `open` receives the call that opens it, which has no message."""

    open: Callable[[GrpcCall], RequestHandler]


class Service(Protocol):
    """One gRPC service."""

    name: str  # As in its .proto file, with the package.

    def methods(self) -> Mapping[str, Method | StreamMethod]:
        """The service's methods by name."""
