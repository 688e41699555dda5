"""The bus over MQTT: paho-mqtt, made to tell the truth (connected, refused, too large, link dead, thread dead)."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from shared import clock
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.logs import get_logger
from shared.mqtt.bus import LINK_JAMMED, Ack, AckHandler, Delivery, Handler, Properties, Will, matches
from shared.mqtt.first_connect import Answer, FirstConnect
from shared.mqtt.inflight import MAX_INFLIGHT, InflightMessages
from shared.mqtt.keepalive import LinkMonitor
from shared.mqtt.paho_client import WatchedClient
from shared.mqtt.properties import packed
from shared.mqtt.publish_packet import Publication
from shared.mqtt.settings import KEEPALIVE_S, MqttSettings
from shared.mqtt.watchdog import Watchdog
from shared.network.address import Address, Certificates
from shared.network.tls import create_tls_context, load, refusal

_LOG = get_logger("mqtt")
_NO_SUBSCRIBER = 0x10
_FAILED = 0x80
_KEEPALIVE_TIMEOUT = 0x8D
_LAST_WORDS_S = 2.0
_LOOK_S = 0.05
_MOST_LOGGED = 20  # Tracebacks of handlers.
_HEAD_BYTES = 2048  # Topic and properties of a publication need room too.
_BROKER_TAKES = "the broker takes"
_SHARE_OF_KEEPALIVE = 0.8  # That the largest payload may take on the narrowest link; the rest is for its way and back.


class MqttBus:
    """A connection to a broker that reconnects by itself and takes its subscriptions along."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        *,
        will: Will | None = None,
        certificates: Certificates | None = None,
        connect_timeout_s: float = 10.0,
        link_timeout_s: float = KEEPALIVE_S,
        min_bandwidth_mbps: float | None = None,
        max_inflight: int = MAX_INFLIGHT,
        times: MqttSettings = MqttSettings(),  # noqa: B008 - frozen.
        on_connected: Callable[[], None] | None = None,
        on_fault: Callable[[BaseException], None] | None = None,
        on_waiting: Callable[[str], None] | None = None,
    ) -> None:
        """Connect, speaking MQTT 5, or 3.1.1 where the broker knows no better.

        `link_timeout_s`: a connection over which nothing comes for so long, though something should, is given up for a
        new one. `min_bandwidth_mbps`: of the narrowest link to expect; what would take longer than a keepalive on it is
        too large. `max_inflight`: see `MAX_INFLIGHT`. `times`: how long it waits for everything else.
        `on_connected` runs after every connect, on the network thread. `on_fault` is told what the other
        callbacks raised, and of a network thread that died or hangs; what a handler raises is logged. `on_waiting` is
        told why there is no connection, at first or any more. Connections lost and regained are logged.

        Raises:
            BrokerUnreachableError: nothing answered within `connect_timeout_s`.
            BrokerRefusedError: the broker knows us and says no, or one of both distrusts the other's certificate.
            CertificateError: the certificates cannot be used.
        """
        self._address = address
        self._certificates = certificates
        self._on_connected = on_connected
        self._on_fault = on_fault
        self._on_waiting = on_waiting or (lambda _: None)
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[int, Handler]] = {}
        self._left: set[str] = set()  # What is still on its way when a subscription ends finds its handler yet.
        self._progress = threading.Event()
        self._watch = LinkMonitor(link_timeout_s, times.accept_s)
        self._unacknowledged = InflightMessages(max_inflight, lambda count: self._watch.awaits(count, clock.now_ns()))
        self._bounds = {_BROKER_TAKES: MAX_MESSAGE_BYTES}
        if min_bandwidth_mbps is not None:
            bytes_per_s = min_bandwidth_mbps * 1e6 / 8
            bound = f"--min-bandwidth {min_bandwidth_mbps:g} allows"
            self._bounds[bound] = round(bytes_per_s * times.keepalive_s * _SHARE_OF_KEEPALIVE)
        self._refused_for: str | None = None  # What the broker says where it does not accept us.
        self.refused = 0  # Publications that found no room.
        self._is_up = False
        self._is_logged = False  # Whether connections lost and regained are logged: after the first, until closed.
        self._lost_ns: int | None = None  # When the connection was lost; None while there is one.
        self.handler_errors = 0  # Messages whose handler raised an exception.
        self.link_losses = 0
        self.reconnects = 0
        self._secure = partial(create_tls_context, address, certificates) if address.tls else None

        def client_of(protocol: MQTTProtocolVersion) -> WatchedClient:
            client = WatchedClient(
                client_id,
                protocol,
                self._watch,
                received=self._received,
                will=will,
                context=self._secure() if self._secure else None,
                renew=partial(load, address=address, certificates=certificates),
                timeout_s=2 * link_timeout_s,
                keepalive_s=times.keepalive_s,
            )
            client.on_connect = self._connected
            client.on_disconnect = self._disconnected
            client.on_subscribe = self._subscribed
            client.on_publish = self._published
            if address.username:
                client.username_pw_set(address.username, address.password)
            return client

        self._client = FirstConnect(
            address,
            client_id,
            make=client_of,
            answer_s=times.answer_s,
            secure=self._secure,
            certificates=certificates,
            waiting=on_waiting,
        ).within(connect_timeout_s)
        self.reconnects = 0  # However often it took.
        self._is_logged = True
        _LOG.info(
            "connected to broker", broker=str(address), mqtt="5" if self.supports_shared_subscriptions else "3.1.1"
        )
        self._watchdog = Watchdog(
            self._client,
            self._watch,
            times,
            on_loss=self._lost,
            on_away=self._away,
            on_fault=self._fault,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def supports_shared_subscriptions(self) -> bool:
        """See Bus."""
        return bool(self._client.protocol == paho.MQTTv5)

    @property
    def max_payload_bytes(self) -> int:
        """See Bus."""
        return min(self._bounds.values())

    @property
    def payload_limit_reason(self) -> str:
        """See Bus."""
        return "{} {}".format(*min(self._bounds.items(), key=lambda bound: bound[1]))

    @property
    def last_received_ns(self) -> int:
        """See Bus."""
        return self._watch.last_received_ns

    @property
    def is_connected(self) -> bool:
        """See Bus."""
        return bool(self._client.is_connected())

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:
        """See Bus."""
        with self._lock:
            self._subscriptions[topic_filter] = (qos, handler)
            self._left.discard(topic_filter)
        self._send_subscription(self._client, topic_filter, qos)

    def unsubscribe(self, topic_filter: str) -> None:
        """See Bus."""
        with self._lock:
            self._left.add(topic_filter)
        self._client.unsubscribe(topic_filter)

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
        beside: Any = (
            _Packed(packed(properties)) if properties is not None and self.supports_shared_subscriptions else None
        )
        if qos == 0:
            self._publish_unacknowledged(topic, payload, beside, retained=retained)
            return
        tell = acknowledged or _ignore
        if not self._unacknowledged.admit(len(payload), always=retained):
            self.refused += 1
            tell(Ack(accepted=False, no_subscriber=False, reason=LINK_JAMMED))
            return
        # Under no lock of ours: paho holds its own here and while it calls _published.
        info = self._client.publish(topic, payload, qos, retained, beside)
        ack = self._unacknowledged.add(info.mid, tell, len(payload))
        if ack is not None:
            tell(ack)

    def close(self) -> None:
        """See Bus. Waits at most two seconds until the broker has taken what was published."""
        self._is_logged = False
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._is_busy() and self.is_connected and time.monotonic() < deadline:
            self._progress.wait(_LOOK_S)
            self._progress.clear()
        self._watchdog.closing()
        self._client.end()
        self._watchdog.end()

    def _publish_unacknowledged(self, topic: str, payload: bytes, beside: Any, *, retained: bool) -> None:
        if not self._unacknowledged.has_room_to_write(len(payload)):
            self.refused += 1
            return
        self._unacknowledged.write(self._client.publish(topic, payload, 0, retained, beside), len(payload))

    def _connected(self, client: Any, answer: Answer, _flags: Any, code: ReasonCode, properties: Any) -> None:
        if code.is_failure:
            self._refused_for = str(code)
            answer.refused(code.value, str(code))
            return
        self._refused_for = None
        self._is_up = True
        if self._lost_ns is not None:
            seconds = (clock.now_ns() - self._lost_ns) / 1e9
            _LOG.info("connection regained", broker=str(self._address), after_s=round(seconds, 1))
            self._lost_ns = None
        client.accepted()
        limit = getattr(properties, "MaximumPacketSize", None)
        if limit:
            self._bounds[_BROKER_TAKES] = min(MAX_MESSAGE_BYTES, limit - _HEAD_BYTES)
        self._unacknowledged.reconnected()
        with self._lock:
            self.reconnects += 1
            subscriptions = [(topic, qos) for topic, (qos, _) in self._subscriptions.items() if topic not in self._left]
        for topic, qos in subscriptions:
            self._send_subscription(client, topic, qos)
        if self._on_connected:
            self._guarded(self._on_connected)
        answer.accepted()

    def _disconnected(self, _client: Any, answer: Answer, flags: Any, code: ReasonCode, _properties: Any) -> None:
        answer.hung_up()
        was_up, self._is_up = self._is_up, False  # paho tells twice of a keepalive that passed.
        if was_up and self._is_logged:
            self._lost_ns = clock.now_ns()
            silent_s = round(max(0.0, (self._lost_ns - self.last_received_ns) / 1e9), 1)
            reason = "the connection was closed" if code.value == _FAILED else str(code)
            _LOG.warning("connection lost", broker=str(self._address), reason=reason, silent_s=silent_s)
        if was_up and code.value == _KEEPALIVE_TIMEOUT and not flags.is_disconnect_packet_from_server:
            self._lost()

    def _subscribed(self, _client: Any, _answer: Any, _mid: int, _codes: Any, _properties: Any) -> None:
        self._unacknowledged.subscribed()

    def _received(self, publication: Publication) -> None:
        received_ns = clock.now_ns()
        try:
            topic = publication.topic.decode()
        except UnicodeDecodeError:  # No broker should let it pass; none of our topics is meant.
            return
        with self._lock:
            handlers = [handler for pattern, (_, handler) in self._subscriptions.items() if matches(pattern, topic)]
        delivery = Delivery(topic, publication.payload, received_ns, publication.properties, publication.is_retained)
        for handler in handlers:
            self._deliver(handler, delivery)

    def _deliver(self, handler: Handler, delivery: Delivery) -> None:
        try:
            handler(delivery)
        except Exception:  # noqa: BLE001  It costs this message alone, and paho's thread would die of it.
            self.handler_errors += 1
            if self.handler_errors <= _MOST_LOGGED:
                _LOG.exception("message ignored, its handler failed", topic=delivery.topic)

    def _published(self, _client: Any, _answer: Any, mid: int, code: ReasonCode, _properties: Any) -> None:
        accepted = code.value < _FAILED
        ack = Ack(accepted, code.value == _NO_SUBSCRIBER, "" if accepted else str(code))
        acknowledged = self._unacknowledged.acknowledge(mid, ack)
        if acknowledged:
            self._guarded(partial(acknowledged, ack))
        self._progress.set()

    def _is_busy(self) -> bool:
        return bool(self._unacknowledged) or self._client.want_write()

    def _lost(self) -> None:
        self.link_losses += 1
        silent_s = (clock.now_ns() - self.last_received_ns) / 1e9
        self._on_waiting(f"broker {self._address} has not been heard for {silent_s:.0f} s: connecting again")

    def _away(self) -> None:
        why = refusal(self._address, self._secure, self._certificates) if self._secure else None
        if why is None and self._refused_for is not None:
            why = f"broker {self._address} does not take us any more: {self._refused_for}; trying again"
        self._on_waiting(why or f"no broker at {self._address} any more; trying again")

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a callback; what it raises would kill paho's thread while it still says it is connected."""
        try:
            step()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the node is told)
            self._fault(error)

    def _fault(self, error: BaseException) -> None:
        if self._on_fault is None:
            raise error
        self._on_fault(error)

    def _send_subscription(self, client: paho.Client, topic_filter: str, qos: int) -> None:
        self._unacknowledged.subscribing()
        if client.protocol == paho.MQTTv5:
            sent, _ = client.subscribe(topic_filter, options=SubscribeOptions(qos=qos))
        else:
            sent, _ = client.subscribe(topic_filter, qos=qos)
        if sent is not MQTTErrorCode.MQTT_ERR_SUCCESS:  # It follows with the next connect.
            self._unacknowledged.subscribed()


class _Packed(NamedTuple):
    """A publication's properties as paho wants them, which asks but for their bytes."""

    written: bytes

    def pack(self) -> bytes:
        """With their length before them."""
        return self.written


def _ignore(_: Ack) -> None:
    """Nobody asked to be told of this one."""
