"""What connections of HTTP/2 have in common, and the calls on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cloud.gateway.capacity import Capacity
from cloud.gateway.deadlines import Deadlines
from cloud.gateway.grpc_context import Context
from cloud.gateway.places import Place, Places
from cloud.gateway.refusal import RefusedError
from shared.call_threads import CallThreads


class Handler(Protocol):
    """Answers the calls of one method."""

    @property
    def needs_message(self) -> bool:
        """Whether it can do nothing before one has come."""

    def admit(self, context: Context) -> None:
        """See to it that a call may go on, from what stands before its messages.

        Raises:
            RefusedError: it may not.
        """

    def answer(self, context: Context) -> None:
        """Make a call, and end it."""

    def refuse(self, context: Context, error: RefusedError) -> None:
        """End a call that is not made."""

    def count(self, code: str) -> None:
        """Hear with which code a call has ended."""


@dataclass(frozen=True, slots=True)
class ConnectionTerms:
    """What all connections have in common."""

    handlers: Mapping[str, Handler]  # By path, /package.Service/Method.
    unknown: Handler  # Refuses a call of any other.
    threads: CallThreads
    capacity: Capacity
    deadlines: Deadlines
    awaited: Places  # For calls whose message has not come whole.
    untaken: Places  # For those whose answer waits for its caller.
    most_bytes: int  # Of a message.
    most_streams: int  # Calls of one connection at a time.


@dataclass(slots=True, eq=False)
class UnderWay:
    """A call, as its connection sees it."""

    context: Context
    handler: Handler
    window: int  # Bytes that its caller may send without being let.
    place: Place | None = None  # While its message is awaited.
    deadline: int | None = None
    is_made: bool = False  # By a thread, which gives back what the call has a share of.
