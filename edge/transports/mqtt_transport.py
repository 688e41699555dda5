"""The MQTT transport: frames, results and clock probes as messages on a broker's topics."""

import threading
from collections.abc import Mapping
from functools import partial

from edge.config import EdgeConfig
from edge.transports.transport import (
    NO_BROKER,
    NO_WORKER,
    EncodedRequest,
    OnUndelivered,
    RawReply,
    ReplyQueue,
    TransportEvents,
)
from edge.workers.worker_clocks import ClockProber, WorkerClocks
from edge.workers.worker_directory import WorkerDirectory
from edge.workers.worker_stats import WorkerLoads
from shared.logs import RateLimitedLogger, get_logger
from shared.messages import topics
from shared.messages.frame import FRAME_CONTENT_TYPE, FrameMessage, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.node_metrics import VehicleMetrics, pack_vehicle_metrics
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.mqtt.bus import LINK_JAMMED, Ack, Bus, Delivery, Properties, Will
from shared.mqtt.name_guard import NameGuard, client_id

_LOG = RateLimitedLogger(get_logger("edge"))
_CONTROL_MESSAGES = 8  # Messages other than frames that may wait for the broker.
# Reason codes of a broker that refuses a message for its size; others have causes of their own, such as access lists.
_SIZE_REFUSALS = ("Implementation specific error", "Quota exceeded", "Unspecified error")


def open_mqtt(config: EdgeConfig, session: str, events: TransportEvents) -> "MqttTransport":
    """Connects to the broker as a vehicle.

    Raises:
        SkylaneError: the broker does not answer, or refuses the connection.
    """
    bus = config.connection.open(
        client_id("vehicle", config.vehicle),
        vehicle_will(config.vehicle, session),
        name=config.vehicle,
        max_inflight=2 * config.window + _CONTROL_MESSAGES,  # Each frame may be sent twice.
        on_connected=events.connected,
        on_fault=events.fault,
        on_waiting=lambda reason: _LOG.warning("waiting", "no connection to the broker", reason=reason),
    )
    return MqttTransport(bus, config, session, events)


def vehicle_will(vehicle: str, session: str) -> Will:
    """Returns the message that the broker publishes if the vehicle disconnects unexpectedly."""
    return Will(topics.VEHICLE_STATUS.of(vehicle=vehicle), pack_status(NodeStatus(NodeState.OFFLINE, session)))


class MqttTransport:
    """Publishes frames to the model's topic and receives results on the vehicle's topic. See Transport."""

    def __init__(self, bus: Bus, config: EdgeConfig, session: str, events: TransportEvents | None = None) -> None:
        """Subscribes to results and worker statuses, and announces the vehicle."""
        events, vehicle = events or TransportEvents(), config.vehicle
        events.reconnected = self.reconnected
        self.replies = ReplyQueue(config.window)
        # Without MQTT 5, the broker does not report that a chosen worker is gone.
        by_load = config.needs_loads and bus.supports_shared_subscriptions
        loads = WorkerLoads(config.model) if by_load else None
        self.workers = WorkerDirectory(config.model, config.model_version, loads)
        self._bus = bus
        self._vehicle, self._model = vehicle, config.model
        self._session = session
        self._qos = config.qos
        self._otel_share = config.otel_share
        self._prober: ClockProber | None = None
        self._state = NodeState.ONLINE
        self._unacknowledged = 0  # Number of announcements that the broker has not acknowledged.
        self._lock = threading.Lock()
        self._announcing = threading.Lock()  # Keeps announcements in the order of their states.
        self._claim = NameGuard("vehicle", vehicle, session, announce=self.announce, give_up=events.give_up)
        self._claim.open(bus)
        bus.subscribe(topics.WORKER_STATUS.filter(), topics.WORKER_STATUS.qos, self.workers.announced)
        if by_load:
            bus.subscribe(topics.LOADS.filter(), topics.LOADS.qos, self.workers.load_announced)
        bus.subscribe(topics.MASKS.filter(vehicle=vehicle), self._qos, self._on_reply)
        self.announce()

    @property
    def is_connected(self) -> bool:
        """See Transport."""
        return self._bus.is_connected

    @property
    def has_lost_broker(self) -> bool:
        """See Transport."""
        return not self._bus.is_connected

    @property
    def last_received_ns(self) -> int:
        """See Transport."""
        return self._bus.last_received_ns

    def announce(self) -> None:
        """Publishes the vehicle's status, unless another process has taken over its name."""
        with self._announcing:
            if self._claim.is_lost:
                return
            with self._lock:
                self._unacknowledged += 1
            self._bus.publish(
                topics.VEHICLE_STATUS.of(vehicle=self._vehicle),
                pack_status(NodeStatus(self._state, self._session, age_ms=self._claim.age_ms, rival=self._claim.rival)),
                qos=topics.VEHICLE_STATUS.qos,
                retained=True,
                acknowledged=self._on_announced,
            )

    def ping(self) -> None:
        """See Transport. The broker acknowledges the announcement."""
        if not self._unacknowledged:
            self.announce()

    def report(self, metrics: VehicleMetrics) -> None:
        """See Transport."""
        if self._bus.is_connected and not self._claim.is_lost:  # An old report is worthless.
            topic = topics.VEHICLE_METRICS.of(vehicle=self._vehicle)
            self._bus.publish(topic, pack_vehicle_metrics(metrics), qos=topics.VEHICLE_METRICS.qos)

    def reconnected(self) -> None:
        """Starts over after a reconnect; runs on the network thread, before the broker's retained messages arrive."""
        self.workers.forget()
        if self._prober is not None:
            self._prober.reconnected()
        self.announce()

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """See Transport."""
        return self.workers.wait_for_card(timeout_s, self._report_waiting)

    def _report_waiting(self) -> None:
        """Publishes a report while the vehicle waits for its first worker."""
        self.report(VehicleMetrics(self._session, self._model, 0.0, {}, "", None, 0, None))

    def unused(self) -> Mapping[str, str]:
        """See Transport. Always empty, because a broker knows the addresses of the workers."""
        return {}

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Transport."""
        return EncodedRequest(pack_frame(message))

    def excess(self, request: EncodedRequest) -> str:
        """See Transport."""
        is_too_large = request.size > self._bus.max_payload_bytes
        return f"{request.size} bytes, {self._bus.payload_limit_reason}" if is_too_large else ""

    def send(
        self,
        message: FrameMessage,
        request: EncodedRequest,
        on_undelivered: OnUndelivered,
        *,
        worker: str | None = None,
    ) -> None:
        """See Transport."""

        def on_ack(ack: Ack) -> None:
            if ack.no_subscriber:
                on_undelivered(NO_WORKER)
            elif ack.reason == LINK_JAMMED:
                on_undelivered(NO_BROKER if self.has_lost_broker else LINK_JAMMED)
            elif not ack.accepted:
                on_undelivered(_refusal(ack.reason, request.size))

        camera = message.id.camera
        names = {"model": message.model, "vehicle": self._vehicle, "camera": camera}
        self._bus.publish(
            topics.FRAMES.of(**names) if worker is None else topics.RETRIES.of(worker=worker, **names),
            request.body,
            qos=self._qos,
            properties=Properties(
                content_type=FRAME_CONTENT_TYPE,
                response_topic=topics.MASKS.of(vehicle=self._vehicle, camera=camera),
                correlation=str(message.id).encode(),
                expiry_s=message.deadline.expiry_s(),
                traceparent=str(topics.TraceContext.of_frame(message.id, message.attempt, self._otel_share)),
            ),
            acknowledged=on_ack if self._qos else None,
        )

    def probe_clocks(self, clocks: WorkerClocks, stop: threading.Event) -> None:
        """See Transport."""

        def publish(worker: str, probe: bytes) -> None:
            self._bus.publish(topics.PROBES.of(worker=worker, vehicle=self._vehicle), probe, qos=topics.PROBES.qos)

        def on_echo(delivery: Delivery) -> None:
            names = topics.ECHOES.names_in(delivery.topic)
            if names is None:
                clocks.ignore("topic")
            else:
                prober.echoed(names["worker"], delivery.payload, delivery.received_ns)

        self._prober = prober = ClockProber(self._session, clocks, online=self.workers.online, probe=publish)
        echoes = topics.ECHOES.filter(vehicle=self._vehicle)
        self._bus.subscribe(echoes, topics.ECHOES.qos, on_echo)
        prober.run(stop)
        self._bus.unsubscribe(echoes)

    def close(self) -> None:
        """See Transport."""
        self._claim.close()
        self._state = NodeState.OFFLINE
        self.announce()
        self._bus.close()

    def _on_announced(self, ack: Ack) -> None:
        with self._lock:
            self._unacknowledged -= 1
        self._claim.acknowledged(ack)

    def _on_reply(self, delivery: Delivery) -> None:
        read = partial(unpack_result, delivery.payload)
        self.replies.offer(RawReply(read, len(delivery.payload), delivery.received_ns))


def _refusal(reason: str, size_bytes: int) -> str:
    """Returns the reason of a frame that the broker refused; brokers do not name their limit on the size."""
    if reason not in _SIZE_REFUSALS:
        return f"broker_refused: {reason}" if reason else "broker_refused"
    return (
        f"broker_refused: {reason}: {size_bytes:,} bytes are probably above the broker's message_size_limit or "
        "max_packet_size: give --codec jpeg or --resize-at edge, or raise the limit"
    )
