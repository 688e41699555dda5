"""The contract of a transport, which carries frames to workers. The table is in `table.py`."""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_directory import WorkerDirectory
from edge.transports.messages import EncodedRequest, ReplyQueue
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard

NO_WORKER = "no_worker"  # Reason if no worker is subscribed to the topic of a frame, or reachable.
NO_BROKER = "no_broker"  # Reason if the vehicle has no connection to the broker.
OnUndelivered = Callable[[str], None]  # Called with the reason if no worker got the frame.


class Transport(Protocol):
    """Carries frames to workers and puts their replies into `replies`. Opened by `opening.open_transport`."""

    replies: ReplyQueue
    workers: WorkerDirectory  # The workers that serve the configured model.

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the broker, or without a broker to a worker that serves the model."""

    @property
    def has_lost_broker(self) -> bool:
        """Whether there is no connection to the broker; always False without one."""

    @property
    def last_received_ns(self) -> int:
        """Time at which the connection last carried anything to this vehicle, by `shared.clock`."""

    def ping(self) -> None:
        """Asks the broker for a sign of life, unless one is due already."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """Returns the card of the configured model; raises NoWorkerError if no worker serves it in time."""

    def unused(self) -> Mapping[str, str]:
        """Returns the configured addresses that got no frame, with the reason."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """Encodes a frame."""

    def excess(self, request: EncodedRequest) -> str:
        """Returns size and limit of a request that is too large to be sent, as text; empty if it is not too large."""

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
