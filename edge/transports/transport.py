"""The transport contract, and `open_transport`."""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from edge.config import EdgeConfig
from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_directory import WorkerDirectory
from edge.transport_events import TransportEvents
from edge.transports.table import TRANSPORTS
from shared.messages.frame import FrameMessage, ResultMessage
from shared.messages.model_card import ModelCard
from shared.registry import load

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


OnUndelivered = Callable[[str], None]  # Called with the reason if no worker got the frame.


class Transport(Protocol):
    """Carries frames to workers and puts their replies into `replies`."""

    replies: "queue.Queue[RawReply | None]"
    workers: WorkerDirectory  # The workers that serve the configured model.

    @property
    def replies_dropped(self) -> int:
        """Number of replies that were dropped because `replies` was full."""

    @property
    def max_request_bytes(self) -> int:
        """Largest request that may be sent."""

    @property
    def request_limit(self) -> str:
        """The size limit and its origin, for error messages."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the broker, or without a broker to a worker that serves the model."""

    @property
    def last_received_ns(self) -> int:
        """Time at which the connection last carried anything to this vehicle, by `shared.clock`."""

    def ping(self) -> None:
        """Asks the broker for a sign of life, unless one is due already."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """Returns the card of the configured model from a worker that serves it.

        Raises:
            NoWorkerError: no worker serves the model in time.
        """

    def unused(self) -> Mapping[str, str]:
        """Returns the configured addresses that got no frame, with the reason."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """Encodes a frame."""

    def send(
        self,
        message: FrameMessage,
        request: EncodedRequest,
        on_undelivered: OnUndelivered,
        *,
        worker: str | None = None,
    ) -> None:
        """Sends an encoded frame to `worker`, or to any worker; returns before it is on the wire."""

    def probe_clocks(self, clocks: WorkerClocks, stop: threading.Event) -> None:
        """Probes the clocks of the workers until stopped, and reports the results to `clocks`."""

    def close(self) -> None:
        """Signs off and closes the connections."""


def open_transport(config: EdgeConfig, session: str, *, events: TransportEvents | None = None) -> Transport:
    """Connects to the broker or to the workers of a configuration; close the transport after use.

    Raises:
        SkylaneError: an address cannot be used, a library is missing, or there is no broker.
    """
    factory: Callable[..., Transport] = load("transport", TRANSPORTS, config.transport)
    return factory(config, session, events or TransportEvents())
