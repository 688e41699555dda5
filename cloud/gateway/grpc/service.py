"""The interface of a gRPC service of the gateway; messages are bytes."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from cloud.gateway.grpc.call import GrpcCall


@dataclass(frozen=True, slots=True)
class Method:
    """A method with one request."""

    respond: Callable[[GrpcCall], Any]  # Returns the response, or an iterator of responses; raises ApiError.
    streams_responses: bool = False
    needs_token: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class PendingResponse:
    """A request of a stream that is being processed."""

    futures: Sequence[Future[Any]]  # `respond` may be called when all are done; they are cancelled with the stream.
    respond: Callable[[], bytes]  # Returns the response, which may report an error.


class RequestHandler(Protocol):
    """Handles the requests of one stream."""

    def begin(self, call: GrpcCall) -> PendingResponse:
        """Starts to process a request."""


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A method with a stream of requests and a stream of responses."""

    open: Callable[[GrpcCall], RequestHandler]  # Receives the call that opens the stream, which has no message.


class Service(Protocol):
    """A gRPC service."""

    name: str  # The full name in the .proto file, with the package.

    def methods(self) -> Mapping[str, Method | StreamMethod]:
        """Returns the service's methods by name."""
