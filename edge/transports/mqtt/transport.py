"""Frames and masks over MQTT."""

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from edge.config import EdgeConfig
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_directory import Workers
from edge.transport_events import TransportEvents
from edge.transports.mqtt.clock_prober import MqttClockProber
from edge.transports.transport import MAX_QUEUED_REPLIES, EncodedRequest, Reply, Unreachable
from shared.errors import SkylaneError
from shared.logs import RateLimitedLogger, get_logger
from shared.messages import topics
from shared.messages.frame import FRAME_CONTENT_TYPE, FrameMessage, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.mqtt.bus import LINK_JAMMED, Ack, Bus, Delivery, Properties, Will
from shared.mqtt.name_guard import NameGuard, client_id
from shared.network.broker_options import Connection

_LOG = RateLimitedLogger(get_logger("edge"))
_FEW = 8  # Messages beside frames that may wait for the broker.


def opened(config: EdgeConfig, session: str, hooks: TransportEvents) -> "MqttTransport":
    """Connect to the broker as the vehicle.

    Raises:
        SkylaneError: there is none, or it refuses us.
    """
    connection = Connection(**config.model_dump(include=set(Connection.__dataclass_fields__)))
    bus = connection.open(
        client_id("vehicle", config.vehicle),
        vehicle_will(config.vehicle, session),
        name=config.vehicle,
        max_inflight=2 * config.window + _FEW,  # Each frame may be sent twice.
        on_connected=hooks.connected,
        on_fault=hooks.fault,
        on_waiting=lambda reason: _LOG.warning("waiting", "no connection to the broker", reason=reason),
    )
    transport = MqttTransport(
        bus,
        vehicle=config.vehicle,
        session=session,
        model=config.model,
        version=config.model_version,
        qos=config.qos,
        most_replies=max(MAX_QUEUED_REPLIES, 2 * config.window),  # Each frame may be answered twice.
        give_up=hooks.give_up,
    )
    hooks.reconnected = transport.reconnected
    return transport


def vehicle_will(vehicle: str, session: str) -> Will:
    """What the broker says when the vehicle goes without a word."""
    return Will(topics.VEHICLE_STATUS.of(vehicle=vehicle), pack_status(NodeStatus(NodeState.OFFLINE, session)))


class MqttTransport:
    """Publishes to the model's frames topic and listens on the vehicle's masks topic."""

    def __init__(
        self,
        bus: Bus,
        *,
        vehicle: str,
        session: str,
        model: str,
        version: str | None = None,
        qos: int = topics.FRAMES.qos,
        most_replies: int = MAX_QUEUED_REPLIES,
        give_up: Callable[[SkylaneError], None] = lambda _: None,
    ) -> None:
        """`version`: of the model; None: whichever a worker takes for current. `most_replies`: that wait to be read.

        `give_up` is told, on the network thread, why the vehicle cannot go on under its name.
        """
        self.replies: queue.Queue[Reply | None] = queue.Queue(most_replies)
        self.replies_dropped = 0
        self._bus = bus
        self._vehicle = vehicle
        self._session = session
        self._model = topics.checked("model", model)
        self._version = version
        self._qos = qos
        self._workers = Workers()
        self._prober = MqttClockProber(bus, vehicle=vehicle, session=session, online=self.online)
        self._state = NodeState.ONLINE
        self._unacknowledged = 0  # Announcements; an outage may last for days.
        self._lock = threading.Lock()
        self._announcing = threading.Lock()  # What is told last must be what is so.
        self._claim = NameGuard("vehicle", vehicle, session, announce=self.announce, give_up=give_up)
        self._claim.open(bus)
        bus.subscribe(topics.WORKER_STATUS.filter(), topics.WORKER_STATUS.qos, self._workers.announced)
        bus.subscribe(topics.MASKS.filter(vehicle=vehicle), qos, self._returned)
        self.announce()

    @property
    def largest_message(self) -> int:
        """See Transport."""
        return self._bus.max_payload_bytes

    @property
    def largest_message_told(self) -> str:
        """See Transport."""
        return self._bus.payload_limit_reason

    @property
    def is_connected(self) -> bool:
        """See Transport."""
        return self._bus.is_connected

    @property
    def last_received_ns(self) -> int:
        """See Transport."""
        return self._bus.last_received_ns

    def announce(self) -> None:
        """Tell where the vehicle stands, unless its name turned out to be another's."""
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
                acknowledged=self._acknowledged,
            )

    def ask_for_sign(self) -> None:
        """See Transport."""
        if not self._unacknowledged:
            self.announce()

    def reconnected(self) -> None:
        """The connection was lost and is there again; runs on the network thread, before what the broker retains."""
        self._workers.forget()
        self._prober.reconnected()
        self.announce()

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """See Transport."""
        return self._workers.wait_for_card(self._model, timeout_s, self._version)

    def wait_until_served(self, timeout_s: float) -> bool:
        """See Transport."""
        return self._workers.wait_until_serves(self._model, timeout_s, self._version)

    def online(self) -> Sequence[tuple[str, str]]:
        """See Transport."""
        return self._workers.online(self._model, self._version)

    def departed_ns(self, *, after_ns: int = 0, timeout_s: float = 0.0) -> int:
        """See Transport."""
        return self._workers.departed_ns(self._model, self._version, after_ns=after_ns, timeout_s=timeout_s)

    def unused(self) -> Mapping[str, str]:
        """See Transport: the broker finds the workers."""
        return {}

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Transport."""
        return EncodedRequest((pack_frame(message),))

    def send(
        self, message: FrameMessage, parcel: EncodedRequest, unreachable: Unreachable, *, worker: str | None = None
    ) -> None:
        """See Transport."""

        def acknowledged(ack: Ack) -> None:
            if ack.no_subscriber:
                unreachable("no_worker")
            elif ack.reason == LINK_JAMMED:
                unreachable(LINK_JAMMED)
            elif not ack.accepted:
                unreachable(f"broker_refused: {ack.reason}" if ack.reason else "broker_refused")

        camera = message.id.camera
        budget = message.budget_ms
        names = {"model": message.model, "vehicle": self._vehicle, "camera": camera}
        self._bus.publish(
            topics.FRAMES.of(**names) if worker is None else topics.RETRIES.of(worker=worker, **names),
            parcel.body,
            qos=self._qos,
            properties=Properties(
                content_type=FRAME_CONTENT_TYPE,
                response_topic=topics.MASKS.of(vehicle=self._vehicle, camera=camera),
                correlation=str(message.id).encode(),
                expiry_s=None if budget is None else -(-budget // 1000),
                traceparent=f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01",
            ),
            acknowledged=acknowledged if self._qos else None,
        )

    def probe_clocks(self, clocks: Clocks, stop: threading.Event) -> None:
        """See Transport."""
        self._prober.run(clocks, stop)

    def close(self) -> None:
        """See Transport."""
        self._claim.close()
        self._state = NodeState.OFFLINE
        self.announce()
        self._bus.close()

    def _acknowledged(self, ack: Ack) -> None:
        with self._lock:
            self._unacknowledged -= 1
        self._claim.acknowledged(ack)

    def _returned(self, delivery: Delivery) -> None:
        try:
            self.replies.put_nowait(
                Reply(partial(unpack_result, delivery.payload), len(delivery.payload), delivery.received_ns)
            )
        except queue.Full:
            self.replies_dropped += 1  # By this thread alone.
