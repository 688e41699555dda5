"""What every transport offers, and the table of them."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge.reliability.worker_clocks import Clocks
from shared.encoding.compression import Buffer
from shared.messages.frame import FrameMessage, ResultMessage
from shared.messages.model_card import ModelCard
from shared.registry import Entry

MAX_QUEUED_REPLIES = 256  # That wait to be read.

TRANSPORTS = {  # Each opened by (EdgeConfig, session, TransportEvents).
    "mqtt": Entry("edge.transports.mqtt.transport:opened", "edge"),
    "grpc": Entry("edge.transports.grpc.transports:native", "transports"),
    "tfs-grpc": Entry("edge.transports.grpc.transports:tensorflow_serving", "transports"),
    "oip-grpc": Entry("edge.transports.grpc.transports:open_inference", "transports"),
    "oip-rest": Entry("edge.transports.http.transports:open_inference", "transports"),
    "tfs-rest": Entry("edge.transports.http.transports:tensorflow_serving", "transports"),
}


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A frame packed for its way up."""

    parts: tuple[Buffer, ...]  # Of its body: a picture among them lies where it was made, and is not copied.
    beside: tuple[tuple[str, str | bytes], ...] = ()  # Headers that say of the frame what the body has no place for.

    @property
    def body(self) -> bytes:
        """All of its parts, joined; one that is bytes already is not copied."""
        return b"".join(self.parts)

    @property
    def size(self) -> int:
        """Bytes that go up: the body, and what goes beside it."""
        return sum(map(len, self.parts)) + sum(len(value) for _, value in self.beside)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came in, unread."""

    read: Callable[[], ResultMessage]  # Raises MessageError: it is none.
    size: int  # Bytes that came down.
    returned_ns: int


Unreachable = Callable[[str], None]  # Told, with the reason, when it is certain that nobody got a message.


class Transport(Protocol):
    """Carries frames to a worker; whatever comes back waits in `replies`."""

    replies: "queue.Queue[Reply | None]"

    @property
    def replies_dropped(self) -> int:
        """Answers that found `replies` full; their frames are closed by time."""

    @property
    def largest_message(self) -> int:
        """Bytes; a larger message must not be sent."""

    @property
    def largest_message_told(self) -> str:
        """Whose bound that is, and the bound."""

    @property
    def is_connected(self) -> bool:
        """Whether the link to the broker, or without a broker to a worker of the model, stands as far as is known."""

    @property
    def last_received_ns(self) -> int:
        """When the link was last known to carry anything this way, by `shared.clock`."""

    def ask_for_sign(self) -> None:
        """Have the link carry something back, if it carries anything at all, unless that is on its way already."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """The card of the model that is wanted, from a worker that serves it."""

    def wait_until_served(self, timeout_s: float) -> bool:
        """Whether a worker serves the model, waiting for one at most `timeout_s`."""

    def online(self) -> Sequence[tuple[str, str]]:
        """The workers that serve the model, each with the session of its process."""

    def departed_ns(self, *, after_ns: int = 0, timeout_s: float = 0.0) -> int:
        """When a worker of the model last went without draining, or the connection with all that was on its way.

        0 where none has. Waits at most `timeout_s` for one that goes later than `after_ns`.
        """

    def unused(self) -> Mapping[str, str]:
        """The addresses that were given and got no frame, each with why nobody there could take one."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """A frame as this transport sends it."""

    def send(
        self, message: FrameMessage, parcel: EncodedRequest, unreachable: Unreachable, *, worker: str | None = None
    ) -> None:
        """Hand a packed frame over; returns before it is on the wire. `worker`: who is to take it; None: any."""

    def probe_clocks(self, clocks: Clocks, stop: threading.Event) -> None:
        """Tell `clocks` what the workers' clocks say, until stopped; the body of a thread.

        A transport without a channel beside the frames returns at once: `clocks` then knows what the frames tell.
        """

    def close(self) -> None:
        """Say goodbye."""
