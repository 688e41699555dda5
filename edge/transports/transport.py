"""The contract and the table of transports, which carry frames to workers; their requests, replies and events."""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerDirectory
from shared.errors import SkylaneError
from shared.messages.frame import FrameMessage, ResultMessage
from shared.messages.model_card import ModelCard
from shared.messages.node_metrics import VehicleMetrics
from shared.registry import PluginTable

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
    returned_ns: int  # Arrival of the reply, by `shared.clock`.


class ReplyQueue(queue.Queue[RawReply | None]):
    """Replies that wait to be decoded."""

    def __init__(self, window: int = 1) -> None:
        """`window`: maximum number of frames in flight; each may be answered twice."""
        super().__init__(max(MAX_QUEUED_REPLIES, 2 * window))
        self.dropped = 0

    def offer(self, reply: RawReply) -> None:
        """Adds a reply without waiting; drops and counts it if the queue is full."""
        try:
            self.put_nowait(reply)
        except queue.Full:
            with self.mutex:
                self.dropped += 1


class TransportEvents:
    """Collects events until the node asks for them. Any thread may report one, also before the node exists."""

    def __init__(self) -> None:
        self.reconnected: Callable[[], None] = lambda: None  # Called when the bus has connected, first or again.
        self.faults: list[BaseException] = []  # Exceptions in callbacks of the transport; the run is aborted.
        self.end_reason: SkylaneError | None = None  # The error for which the run must end in an orderly way.

    def connected(self) -> None:
        """Reports that the bus has connected, for the first time or again."""
        self.reconnected()

    def fault(self, error: BaseException) -> None:
        """Reports an exception in a callback of the transport."""
        self.faults.append(error)

    def give_up(self, reason: SkylaneError) -> None:
        """Reports that the run must end in an orderly way, and why."""
        self.end_reason = reason

    def check(self) -> None:
        """Raises the first exception that was reported, or else the reason to end, if there is one."""
        for error in (*self.faults[:1], self.end_reason):
            if error is not None:
                raise error


NO_WORKER = "no_worker"  # Reason if no worker is subscribed to the topic of a frame, or reachable.
NO_BROKER = "no_broker"  # Reason if the vehicle has no connection to the broker.
OnUndelivered = Callable[[str], None]  # Called with the reason if no worker got the frame.


class Transport(Protocol):
    """Carries frames to workers and puts their replies into `replies`. Opened by `opening.open_transport`."""

    replies: ReplyQueue
    workers: WorkerDirectory  # The workers that serve the configured model.

    @property
    def is_connected(self) -> bool:
        """True if the vehicle is connected to the broker, or without a broker to a worker that serves the model."""

    @property
    def has_lost_broker(self) -> bool:
        """True while the vehicle is not connected to its broker; always False for a transport without a broker."""

    @property
    def last_received_ns(self) -> int:
        """Time at which the connection last carried anything to this vehicle, by `shared.clock`."""

    def ping(self) -> None:
        """Asks the broker for a response, unless one is outstanding; `last_received_ns` shows its arrival."""

    def report(self, metrics: VehicleMetrics) -> None:
        """Publishes this vehicle's metrics through the broker, without waiting. Does nothing without a broker."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """Returns the card of the configured model; raises NoWorkerError if no worker serves it in time."""

    def unused(self) -> Mapping[str, str]:
        """Returns the configured worker addresses to which no frame was sent, each with the reason."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """Encodes a frame as the request that `send` takes."""

    def excess(self, request: EncodedRequest) -> str:
        """Returns a text with the size and the limit of a request that is too large; empty if it can be sent."""

    def send(
        self,
        message: FrameMessage,
        request: EncodedRequest,
        on_undelivered: OnUndelivered,
        *,
        worker: str | None = None,
    ) -> None:
        """Sends an encoded frame to `worker` (None: to any worker); returns before the frame is on the wire."""

    def probe_clocks(self, clocks: WorkerClocks, stop: threading.Event) -> None:
        """Probes the clocks of the workers until stopped, and reports the results to `clocks`."""

    def close(self) -> None:
        """Publishes that the vehicle is offline, if there is a broker, and closes the connections."""


class TransportEntry(NamedTuple):
    """A row of the table.

    `path` is "module:attribute": with a broker, a function (EdgeConfig, session, TransportEvents) -> Transport; with an
    endpoint of workers, a ProtocolAdapter of gRPC, or one of HTTP that is built with the name of the model.
    """

    path: str
    extra: str  # The pip extra that installs its dependencies.
    # The kind of endpoint: the broker, or workers over gRPC or HTTP.
    endpoint: Literal["broker", "grpc", "http"] = "broker"

    @property
    def needs_addresses(self) -> bool:
        """True if the configuration must list the workers' addresses; with a broker, it need not."""
        return self.endpoint != "broker"


TRANSPORTS = PluginTable(
    "transport",
    "skylane.transports",
    TransportEntry,
    {
        "mqtt": TransportEntry("edge.transports.mqtt_transport:open_mqtt", "edge", "broker"),
        "grpc": TransportEntry("edge.transports.grpc_channel:SkylaneAdapter", "transports", "grpc"),
        "tfs-grpc": TransportEntry("edge.transports.tensorflow_serving:TfServingGrpcAdapter", "transports", "grpc"),
        "oip-grpc": TransportEntry("edge.transports.open_inference:OipGrpcAdapter", "transports", "grpc"),
        "oip-rest": TransportEntry("edge.transports.open_inference:OipRestAdapter", "transports", "http"),
        "tfs-rest": TransportEntry("edge.transports.tensorflow_serving:TfServingRestAdapter", "transports", "http"),
    },
)


MQTT = "mqtt"  # The transport through a broker; the others connect to workers.
