"""What a transport carries: encoded requests, and replies that are not decoded yet."""

import queue
from collections.abc import Callable
from dataclasses import dataclass

from shared.messages.frame import ResultMessage

MAX_QUEUED_REPLIES = 256


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A frame encoded for a transport."""

    body: bytes
    metadata: tuple[tuple[str, str | bytes], ...] = ()  # gRPC metadata or HTTP headers.

    @property
    def size(self) -> int:
        """Size of body and metadata in bytes."""
        return len(self.body) + sum(len(value) for _, value in self.metadata)


@dataclass(frozen=True, slots=True)
class RawReply:
    """A reply that is not decoded yet."""

    read: Callable[[], ResultMessage]  # Raises MessageError if the reply is malformed.
    size: int  # Size in bytes.
    returned_ns: int


class ReplyQueue(queue.Queue[RawReply | None]):
    """Replies that wait to be decoded."""

    def __init__(self, window: int = 1) -> None:
        """`window`: number of frames in flight; each may be answered twice."""
        super().__init__(max(MAX_QUEUED_REPLIES, 2 * window))
        self.dropped = 0

    def offer(self, reply: RawReply) -> None:
        """Adds a reply without waiting; drops and counts it if the queue is full."""
        try:
            self.put_nowait(reply)
        except queue.Full:
            with self.mutex:
                self.dropped += 1
