"""The MQTT implementation of `Bus`, on paho-mqtt: detects dead links and threads, refused and oversized messages.

It limits the number of sent messages that are not acknowledged yet, and finds the callback of each acknowledgement.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from shared import clock
from shared.logs import get_logger
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.mqtt import first_connect
from shared.mqtt.bus import LINK_JAMMED, Ack, AckHandler, Delivery, Handler, Properties, Will
from shared.mqtt.packets import PublishPacket, encode, matches
from shared.mqtt.paho_client import MAX_INFLIGHT_BYTES, LinkMonitor, MonitoredClient, MqttSettings
from shared.mqtt.watchdog import Watchdog
from shared.network.address import Address, Certificates
from shared.network.tls import create_tls_context, load_certificates, probe_rejection

_LOG = get_logger("mqtt")
_NO_SUBSCRIBER = 0x10
_FAILED = 0x80
_KEEPALIVE_TIMEOUT = 0x8D
_CLOSE_TIMEOUT_S = 2.0
_POLL_S = 0.05
_MAX_LOGGED_TRACEBACKS = 20
_HEADER_BYTES = 2048  # Room for the topic and the properties in the broker's largest packet.
_SMALLEST_PACKET_BYTES = 8192  # A broker that takes less is refused: a status may need it.
_SET_BY_BROKER = "the broker takes"
_KEEPALIVE_SHARE = 0.8  # The largest payload takes this share of a keepalive on the slowest link.


class MqttBus:
    """A broker connection that reconnects by itself and restores its subscriptions."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        settings: MqttSettings = MqttSettings(),  # noqa: B008 - frozen.
        *,
        will: Will | None = None,
        certificates: Certificates | None = None,
        on_connected: Callable[[], None] | None = None,
        on_fault: Callable[[BaseException], None] | None = None,
        on_waiting: Callable[[str], None] | None = None,
    ) -> None:
        """Connects with MQTT 5, or with 3.1.1 if the broker does not know MQTT 5.

        `on_connected` is called on the network thread after every connection. `on_fault` is called with exceptions of
        the other callbacks, and when the network thread dies or hangs; exceptions of message handlers are logged.
        `on_waiting` is called with the reason why there is no connection, at the start or later.

        Raises:
            SkylaneError: no broker answered in time;
                the broker refused, or one side does not trust the other's certificate.
            CertificateError: the certificates cannot be used.
        """
        self._address = address
        self._certificates = certificates
        self._on_connected = on_connected
        self._on_fault = on_fault
        self._on_waiting = on_waiting or (lambda _: None)
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[int, Handler]] = {}
        self._unsubscribed: set[str] = set()  # Their handlers still receive messages that are under way.
        self._progress = threading.Event()
        self._monitor = LinkMonitor(settings.link_timeout_s, settings.reconnect_timeout_s)
        self.inflight = InflightMessages(
            settings.max_inflight,
            lambda count: self._monitor.set_pending(count, clock.now_ns()),
            limit_bytes=settings.max_inflight_bytes,
        )
        self._payload_limits = {_SET_BY_BROKER: MAX_MESSAGE_BYTES}  # Limits with their `payload_limit_reason`.
        if settings.min_bandwidth_mbps is not None:
            keepalive_bytes = settings.min_bandwidth_mbps * 1e6 / 8 * settings.keepalive_s
            reason = f"--min-bandwidth {settings.min_bandwidth_mbps:g} allows"
            self._payload_limits[reason] = round(keepalive_bytes * _KEEPALIVE_SHARE)
        self._refusal: str | None = None  # Reason text of the broker's last refusal; None after an accepted connection.
        self.refused = 0  # Publications refused because too many were in flight.
        self._is_up = False
        self._logs_connection = False  # True between the first connection and `close`.
        self._lost_ns: int | None = None  # Time of the last connection loss; None: connected.
        self.handler_errors = 0  # Messages whose handler raised an exception.
        self.link_losses = 0
        self.lacking = ""  # The missing features of the broker that only its replies show.
        self._asked: dict[int, tuple[str, int]] = {}  # Topic filters and QoS of subscriptions that have no reply yet.
        self.reconnects = 0
        self._create_context = partial(create_tls_context, address, certificates) if address.tls else None

        def create_client(protocol: MQTTProtocolVersion) -> MonitoredClient:
            client = MonitoredClient(
                client_id,
                protocol,
                self._monitor,
                settings,
                received=self._received,
                will=will,
                context=self._create_context() if self._create_context else None,
                reload_certificates=partial(load_certificates, address=address, certificates=certificates),
            )
            client.on_connect = self._connected
            client.on_disconnect = self._disconnected
            client.on_subscribe = self._subscribed
            client.on_publish = self._published
            if address.username:
                client.username_pw_set(address.username, address.password)
            return client

        self.client = first_connect.connect(
            address,
            client_id,
            settings.connect_timeout_s,
            create_client=create_client,
            connack_timeout_s=settings.connack_timeout_s,
            create_context=self._create_context,
            certificates=certificates,
            on_waiting=self._on_waiting,
        )
        self.reconnects = 0  # The first connection may have taken several attempts.
        self._logs_connection = True
        _LOG.info(
            "connected to broker", broker=str(address), mqtt="5" if self.supports_shared_subscriptions else "3.1.1"
        )
        self.watchdog = Watchdog(
            self.client,
            self._monitor,
            settings,
            on_loss=self._link_lost,
            on_offline=self._offline,
            on_fault=self._fault,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def supports_shared_subscriptions(self) -> bool:
        """See Bus."""
        return bool(self.client.protocol == paho.MQTTv5)

    @property
    def max_payload_bytes(self) -> int:
        """See Bus."""
        return min(self._payload_limits.values())

    @property
    def payload_limit_reason(self) -> str:
        """See Bus."""
        return "{} {}".format(*min(self._payload_limits.items(), key=lambda limit: limit[1]))

    @property
    def last_received_ns(self) -> int:
        """See Bus."""
        return self._monitor.last_received_ns

    @property
    def is_connected(self) -> bool:
        """See Bus."""
        return bool(self.client.is_connected())

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:
        """See Bus."""
        with self._lock:
            self._subscriptions[topic_filter] = (qos, handler)
            self._unsubscribed.discard(topic_filter)
        self._send_subscription(self.client, topic_filter, qos)

    def unsubscribe(self, topic_filter: str) -> None:
        """See Bus."""
        with self._lock:
            self._unsubscribed.add(topic_filter)
        self.client.unsubscribe(topic_filter)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int,
        retained: bool = False,
        properties: Properties | None = None,
        acknowledged: AckHandler | None = None,
    ) -> None:
        """See Bus."""
        encoded: Any = None
        if properties is not None and self.supports_shared_subscriptions:
            encoded = _EncodedProperties(encode(properties))
        if qos == 0:
            self._publish_qos_0(topic, payload, encoded, retained=retained)
            return
        on_ack = acknowledged or _ignore
        if not self.inflight.admit(len(payload), always=retained):
            self.refused += 1
            on_ack(Ack(accepted=False, no_subscriber=False, reason=LINK_JAMMED))
            return
        # Without a lock: paho holds its own here and while it calls `_published`.
        info = self.client.publish(topic, payload, qos, retained, encoded)
        ack = self.inflight.add(info.mid, on_ack, len(payload))
        if ack is not None:
            on_ack(ack)

    def close(self) -> None:
        """See Bus. Waits at most two seconds until the broker has acknowledged what was published."""
        self._logs_connection = False
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._is_busy() and self.is_connected and time.monotonic() < deadline:
            self._progress.wait(_POLL_S)
            self._progress.clear()
        self.watchdog.closing()
        self.client.stop()
        self.watchdog.stop()

    def _publish_qos_0(self, topic: str, payload: bytes, encoded: Any, *, retained: bool) -> None:
        if not self.inflight.admit_qos_0(len(payload)):
            self.refused += 1
            return
        self.inflight.add_qos_0(self.client.publish(topic, payload, 0, retained, encoded), len(payload))

    def _connected(
        self, client: Any, reply: first_connect.ConnectReply, _flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if code.is_failure:
            self._refusal = str(code)
            reply.set(code.value, str(code))
            return
        self._refusal = None
        self._is_up = True
        if self._lost_ns is not None:
            seconds = (clock.now_ns() - self._lost_ns) / 1e9
            _LOG.info("connection regained", broker=str(self._address), after_s=round(seconds, 1))
            self._lost_ns = None
        client.accepted()
        packet_limit = getattr(properties, "MaximumPacketSize", None)
        if packet_limit:
            self._payload_limits[_SET_BY_BROKER] = min(MAX_MESSAGE_BYTES, packet_limit - _HEADER_BYTES)
        self.inflight.reconnected()
        with self._lock:
            self.reconnects += 1
            subscriptions = [
                (topic, qos) for topic, (qos, _) in self._subscriptions.items() if topic not in self._unsubscribed
            ]
        for topic, qos in subscriptions:
            self._send_subscription(client, topic, qos)
        if self._on_connected:
            self._guarded(self._on_connected)
        lacking = _lacking(properties)
        reply.set(first_connect.RESTRICTED if lacking else 0, lacking)

    def _disconnected(
        self, _client: Any, reply: first_connect.ConnectReply, flags: Any, code: ReasonCode, _properties: Any
    ) -> None:
        reply.disconnected()
        was_up, self._is_up = self._is_up, False  # paho calls this twice after a keepalive timeout.
        if was_up and self._logs_connection:
            self._lost_ns = clock.now_ns()
            silent_s = round(max(0.0, (self._lost_ns - self.last_received_ns) / 1e9), 1)
            reason = "the connection was closed" if code.value == _FAILED else str(code)
            _LOG.warning("connection lost", broker=str(self._address), reason=reason, silent_s=silent_s)
        if was_up and code.value == _KEEPALIVE_TIMEOUT and not flags.is_disconnect_packet_from_server:
            self._link_lost()

    def _subscribed(self, _client: Any, _reply: Any, mid: int, codes: Any, _properties: Any) -> None:
        self.inflight.subscribed()
        topic_filter, qos = self._asked.pop(mid, ("", 0))
        granted = min((code.value for code in codes), default=qos)
        if granted < qos and not self.lacking:  # A broker of MQTT 3.1.1 announces missing features nowhere else.
            self.lacking = first_connect.LACKING[0x9B]
            _LOG.warning(
                "broker lacks what is needed", broker=str(self._address), lacking=self.lacking, topic=topic_filter
            )

    def _received(self, publication: PublishPacket) -> None:
        received_ns = clock.now_ns()
        try:
            topic = publication.topic.decode()
        except UnicodeDecodeError:  # It cannot be one of our topics.
            return
        with self._lock:
            handlers = [handler for pattern, (_, handler) in self._subscriptions.items() if matches(pattern, topic)]
        delivery = Delivery(topic, publication.payload, received_ns, publication.properties, publication.is_retained)
        for handler in handlers:
            self._deliver(handler, delivery)

    def _deliver(self, handler: Handler, delivery: Delivery) -> None:
        try:
            handler(delivery)
        except Exception:  # noqa: BLE001  It would end the network thread; so only this message is lost.
            self.handler_errors += 1
            if self.handler_errors <= _MAX_LOGGED_TRACEBACKS:
                _LOG.exception("message ignored, its handler failed", topic=delivery.topic)

    def _published(self, _client: Any, _reply: Any, mid: int, code: ReasonCode, _properties: Any) -> None:
        accepted = code.value < _FAILED
        ack = Ack(accepted, code.value == _NO_SUBSCRIBER, "" if accepted else str(code))
        acknowledged = self.inflight.acknowledge(mid, ack)
        if acknowledged:
            self._guarded(partial(acknowledged, ack))
        self._progress.set()

    def _is_busy(self) -> bool:
        return bool(self.inflight) or self.client.want_write()

    def _link_lost(self) -> None:
        self.link_losses += 1
        silent_s = (clock.now_ns() - self.last_received_ns) / 1e9
        self._on_waiting(f"broker {self._address} has sent nothing for {silent_s:.0f} s: connecting again")

    def _offline(self) -> None:
        reason = f"no broker at {self._address} any more; trying again"
        if self._create_context and (
            problem := probe_rejection(self._address, self._create_context, self._certificates)
        ):
            reason = str(problem)
        elif self._refusal is not None:
            reason = f"broker {self._address} does not accept this node any more: {self._refusal}; trying again"
        self._on_waiting(reason)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a callback and reports its exception, which would otherwise end the network thread unnoticed."""
        try:
            step()
        except BaseException as error:  # noqa: BLE001 (the node decides)
            self._fault(error)

    def _fault(self, error: BaseException) -> None:
        if self._on_fault is None:
            raise error
        self._on_fault(error)

    def _send_subscription(self, client: paho.Client, topic_filter: str, qos: int) -> None:
        self.inflight.subscribing()
        if client.protocol == paho.MQTTv5:
            sent, mid = client.subscribe(topic_filter, options=SubscribeOptions(qos=qos))
        else:
            sent, mid = client.subscribe(topic_filter, qos=qos)
        if mid is not None:
            self._asked[mid] = topic_filter, qos
        if sent is not MQTTErrorCode.MQTT_ERR_SUCCESS:  # The next connection sends it.
            self.inflight.subscribed()


def _lacking(properties: Any) -> str:
    """Returns the features that nodes need and a broker announces as missing (MQTT 5); empty if nothing is missing."""
    needed = {
        "RetainAvailable": first_connect.LACKING[0x9A],
        "MaximumQoS": first_connect.LACKING[0x9B],
        "WildcardSubscriptionAvailable": "no subscriptions with wildcards",
        "SharedSubscriptionAvailable": "no shared subscriptions",
    }
    lacking = [text for name, text in needed.items() if not getattr(properties, name, 1)]
    packet_limit = getattr(properties, "MaximumPacketSize", _SMALLEST_PACKET_BYTES)
    if packet_limit < _SMALLEST_PACKET_BYTES:
        lacking.append(f"no packets of more than {packet_limit} bytes")
    return ", ".join(lacking)


class _EncodedProperties(NamedTuple):
    """Encoded properties with the one method that paho calls on its own `Properties`."""

    encoded: bytes

    def pack(self) -> bytes:
        """Returns the properties with their length in front."""
        return self.encoded


def _ignore(_: Ack) -> None:
    """Handles an acknowledgement that the publisher did not ask for."""


class InflightMessages:
    """Publications by packet identifier. Several threads publish; the network thread reports acknowledgements."""

    def __init__(self, limit: int, on_change: Callable[[int], None], *, limit_bytes: int = MAX_INFLIGHT_BYTES) -> None:
        """`on_change` is called, under a lock, with the number of unacknowledged messages whenever it changes."""
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._on_change = on_change
        self._lock = threading.Lock()
        self._publications: dict[int, tuple[AckHandler, int]] = {}  # Callback and payload bytes.
        self._bytes = 0
        self._publishing = 0
        self._early: dict[int, Ack] = {}  # Acknowledgements that arrived before `add`.
        self._subscriptions = 0
        self._unsent: deque[tuple[paho.MQTTMessageInfo, int]] = deque()

    def __len__(self) -> int:
        """The number of unacknowledged publications."""
        return len(self._publications)

    def admit(self, size: int, *, always: bool) -> bool:
        """Returns whether a publication of `size` bytes may be sent; if so, `add` must follow."""
        with self._lock:
            count = len(self._publications) + self._publishing
            is_full = count >= self._limit or (count > 0 and self._bytes + size > self._limit_bytes)
            if is_full and not always:
                return False
            self._publishing += 1
            self._bytes += size
            return True

    def add(self, mid: int, acknowledged: AckHandler, size: int) -> Ack | None:
        """Registers a publication that was handed to paho; returns its acknowledgement if that has already arrived."""
        with self._lock:
            self._publishing -= 1
            ack = self._early.pop(mid, None)
            if ack is None:
                self._publications[mid] = (acknowledged, size)
                self._changed()
            else:
                self._bytes -= size
            if not self._publishing:
                self._early.clear()
            return ack

    def acknowledge(self, mid: int, ack: Ack) -> AckHandler | None:
        """Removes an acknowledged publication and returns its callback."""
        with self._lock:
            publication = self._publications.pop(mid, None)
            if publication is None:
                if self._publishing:
                    self._early[mid] = ack
                return None
            self._bytes -= publication[1]
            self._changed()
            return publication[0]

    def subscribing(self) -> None:
        """Counts a subscription that is about to be sent."""
        with self._lock:
            self._subscriptions += 1
            self._changed()

    def subscribed(self) -> None:
        """Uncounts a subscription that was acknowledged or could not be sent."""
        with self._lock:
            self._subscriptions = max(0, self._subscriptions - 1)
            self._changed()

    def reconnected(self) -> None:
        """Adapts to a new connection: publications stay unacknowledged, subscriptions are sent again."""
        with self._lock:
            self._subscriptions = 0
            self._changed()

    def admit_qos_0(self, size: int) -> bool:
        """Returns whether a QoS 0 publication may be sent, given the earlier ones that are not written yet."""
        with self._lock:
            while self._unsent and _is_done(self._unsent[0][0]):
                self._unsent.popleft()
            unsent_bytes = sum(each for _, each in self._unsent)
            return not unsent_bytes or (len(self._unsent) < self._limit and unsent_bytes + size <= self._limit_bytes)

    def add_qos_0(self, publication: paho.MQTTMessageInfo, size: int) -> None:
        """Registers a QoS 0 publication that was handed to paho."""
        with self._lock:
            self._unsent.append((publication, size))

    def _changed(self) -> None:
        self._on_change(len(self._publications) + self._subscriptions)


def _is_done(publication: paho.MQTTMessageInfo) -> bool:
    try:
        return publication.is_published()
    except RuntimeError:  # It will never be written because its connection is gone.
        return True
