"""A line: the way to one worker, whatever protocol it speaks, and what can come of a call on it."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from edge.transports.transport import EncodedRequest
from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.messages.frame import FrameMessage, ResultMessage, Status


class ChannelError(SkylaneError):
    """A worker that cannot be asked. `is_final`: nor could it a moment later, as it refuses us."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Returned:
    """What came back, unread. `beside`: gRPC's trailing metadata, or HTTP's headers."""

    body: Buffer
    beside: Mapping[str, str | bytes]
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker, or its server, said no in the words of the protocol: what that is of a frame."""

    status: Status
    reason: str
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """It is certain that nobody got the frame: another worker may. `is_stopping`: the worker said so itself."""

    is_stopping: bool


@dataclass(frozen=True, slots=True)
class Silent:
    """Nobody knows whether the frame was received. `is_broken`: for the connection is; else it took too long."""

    is_broken: bool


Outcome = Returned | Refused | Unsent | Silent
Done = Callable[[Outcome], None]  # Runs on a thread of the line's.


class Dialect(Protocol):
    """How a frame is written as a call of a protocol, and its answer read."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """The call's message, written."""

    def read(self, returned: Returned) -> ResultMessage:
        """The answer.

        Raises:
            MessageError: it is none.
        """


class Line(Protocol):
    """The way to one worker. Any thread may use it; close it."""

    def call(self, parcel: EncodedRequest, budget_ms: int | None, timeout_s: float, done: Done) -> None:
        """Send a frame; returns before it is on the wire. `done` is called once.

        `budget_ms`: what the protocol is told of the frame's deadline. `timeout_s`: of use until then.
        """

    def probe(self, payload: bytes, echoed: Callable[[bytes, int], None]) -> None:
        """Send a packed probe; returns at once. `echoed` hears the packed echo, and when it came, if one comes."""

    def echo(self, payload: bytes) -> bytes:
        """The packed echo of a packed probe.

        Raises:
            ChannelError: there is none.
        """

    def statuses(self, stop: threading.Event) -> Iterator[bytes]:
        """The worker's packed status: now, and whenever it changes.

        Raises:
            ChannelError: it cannot be reached, or no more.
        """

    def close(self) -> None:
        """Hang up: calls under way come to nothing."""
