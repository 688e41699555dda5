"""The contracts for calls to one worker: channel, protocol adapter, and the possible outcomes of a call."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from edge.transports.messages import EncodedRequest
from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.messages.deadline import Deadline
from shared.messages.frame import FrameMessage, ResultMessage, Status


class ChannelError(SkylaneError):
    """A worker cannot be called. `is_final`: it refuses this vehicle, so a retry would fail as well."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class RpcReply:
    """A successful call; the reply is not decoded yet."""

    body: Buffer
    metadata: Mapping[str, str | bytes]  # Trailing metadata of gRPC, or HTTP headers.
    returned_ns: int


@dataclass(frozen=True, slots=True)
class RpcRefusal:
    """The server refused the call with an error code of the protocol."""

    status: Status  # The error code as a frame status.
    reason: str
    returned_ns: int


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """The worker certainly did not get the frame, so another worker may. `is_stopping`: the worker is shutting down."""

    is_stopping: bool


@dataclass(frozen=True, slots=True)
class Indeterminate:
    """The worker may or may not have got the frame. `is_broken`: the connection broke; otherwise the call timed out."""

    is_broken: bool


CallOutcome = RpcReply | RpcRefusal | NotDelivered | Indeterminate
OnOutcome = Callable[[CallOutcome], None]  # Runs on a thread of the channel.


class ProtocolAdapter(Protocol):
    """Translates frames and results to and from the messages of one inference protocol."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """Encodes a frame as a request."""

    def read(self, reply: RpcReply) -> ResultMessage:
        """Decodes a reply.

        Raises:
            MessageError: the reply is malformed.
        """


class RpcChannel(Protocol):
    """The connection to one worker. Any thread may use it."""

    def call(self, request: EncodedRequest, deadline: Deadline, timeout_s: float, on_outcome: OnOutcome) -> None:
        """Sends a frame and calls `on_outcome` once; returns before the frame is on the wire.

        Args:
            deadline: Deadline of the frame, passed on to the worker.
            timeout_s: Time limit of the call.
        """

    def probe(self, payload: bytes, on_echo: Callable[[bytes, int], None]) -> None:
        """Sends a packed clock probe; returns at once. `on_echo` gets the packed echo and its arrival time, if any."""

    def echo(self, payload: bytes) -> bytes:
        """Sends a packed clock probe and waits for the packed echo.

        Raises:
            ChannelError: there is no echo.
        """

    def statuses(self) -> Iterator[bytes]:
        """Yields the worker's packed status: the current one, then each change until interrupted.

        Raises:
            ChannelError: the worker cannot be reached, or the connection is lost.
        """

    def interrupt(self) -> None:
        """Ends `statuses`, because the known status may be outdated."""

    def close(self) -> None:
        """Closes the connection and cancels calls in progress."""
