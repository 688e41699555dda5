"""The bus over MQTT: paho-mqtt, made to tell the truth (connected, refused, too large, thread dead)."""

import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from shared import clock
from shared.address import Address, BrokerAddressError, Certificates
from shared.bus import Ack, Acknowledged, Delivery, Handler, Properties, Will, matches
from shared.errors import SkylaneError
from shared.fields import MAX_MESSAGE_BYTES

KEEPALIVE_S = 15  # A payload that takes longer to send than this never arrives: the ping waits behind it.
_NO_SUBSCRIBER = 0x10
_FAILED = 0x80
_LAST_WORDS_S = 2.0
_LOOK_S = 0.05


class BrokerUnreachableError(SkylaneError):
    """No broker answered in time."""


class BrokerRefusedError(SkylaneError):
    """A broker answered and said no."""


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
        on_connected: Callable[[], None] | None = None,
        on_fault: Callable[[BaseException], None] | None = None,
        on_waiting: Callable[[str], None] | None = None,
    ) -> None:
        """Connect, speaking MQTT 5, or 3.1.1 where the broker knows no better.

        `on_connected` runs after every connect, on the network thread. `on_fault` is told what a handler raised.
        `on_waiting` is told, once a failed try, why there is no connection yet.

        Raises:
            BrokerUnreachableError: nothing answered within `connect_timeout_s`.
            BrokerRefusedError: the broker knows us and says no.
        """
        self._address = address
        self._client_id = client_id
        self._will = will
        self._certificates = certificates
        self._on_connected = on_connected
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[int, Handler]] = {}
        self._left: set[str] = set()  # What is still on its way when a subscription ends finds its handler yet.
        self._acknowledged: dict[int, Acknowledged] = {}
        self._early_acks: dict[int, Ack] = {}  # Those that overtook the publish() call they belong to.
        self._publishing = 0
        self._progress = threading.Event()
        self._outcome: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._settled = False
        self.largest_payload = MAX_MESSAGE_BYTES
        self.reconnects = -1  # The first connect is none.
        self._client = self._connect(connect_timeout_s, on_waiting or (lambda _: None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shares_subscriptions(self) -> bool:
        """See Bus."""
        return bool(self._client.protocol == paho.MQTTv5)

    @property
    def is_connected(self) -> bool:
        """Whether the last word of the network was a connect."""
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
        acknowledged: Acknowledged | None = None,
    ) -> None:
        """See Bus."""
        packed = self._to_paho(properties)
        if qos == 0:
            self._client.publish(topic, payload, qos, retained, packed)
            return
        with self._lock:
            self._publishing += 1
        # Not under our lock: paho holds a lock of its own both here and while it calls _published.
        info = self._client.publish(topic, payload, qos, retained, packed)
        with self._lock:
            self._publishing -= 1
            ack = self._early_acks.pop(info.mid, None)
            if ack is None:
                self._acknowledged[info.mid] = acknowledged or _ignore
            if not self._publishing:
                self._early_acks.clear()
        if ack is not None and acknowledged is not None:
            acknowledged(ack)

    def close(self) -> None:
        """See Bus. Waits at most two seconds until the broker has taken what was published."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._is_busy() and self.is_connected and time.monotonic() < deadline:
            self._progress.wait(_LOOK_S)
            self._progress.clear()
        self._client.disconnect()
        self._client.loop_stop()

    def _connect(self, timeout_s: float, waiting: Callable[[str], None]) -> paho.Client:
        deadline = time.monotonic() + timeout_s
        protocol = MQTTProtocolVersion.MQTTv5
        tries = 0
        while True:
            client = self._client_of(protocol)
            reason = self._try(client, deadline)
            if reason is None:
                return client
            client.loop_stop()
            code, text = reason
            if protocol is MQTTProtocolVersion.MQTTv5 and code in _NOT_MQTT5:
                protocol = MQTTProtocolVersion.MQTTv311
                continue
            protocol = MQTTProtocolVersion.MQTTv5  # A broker that was only starting deserves to be asked again.
            if code in _REFUSALS:
                raise BrokerRefusedError(f"broker {self._address} refuses {self._client_id}: {text}: {_REFUSALS[code]}")
            if time.monotonic() >= deadline:
                raise BrokerUnreachableError(
                    f"no broker at {self._address} after {timeout_s:g} s ({text}): start one with 'skylane broker' "
                    "or give its address with --broker"
                )
            tries += 1
            waiting(f"no broker at {self._address} yet ({text}); trying again")
            time.sleep(min(0.1 * 2**tries, 1.0, max(0.0, deadline - time.monotonic())))

    def _try(self, client: paho.Client, deadline: float) -> tuple[int, str] | None:
        """Connect once. None: connected. Otherwise the reason code (0 for a network error) and its text."""
        self._outcome = queue.SimpleQueue()
        self._settled = False
        client.user_data_set(self._outcome)
        try:
            # No properties: a broker of 3.1.1 reads them as something else and waits for the rest. A session then
            # ends with its connection, so that a worker that was away finds no queue of old frames.
            client.connect(self._address.host, self._address.port, KEEPALIVE_S, clean_start=_clean_start(client))
        except ssl.SSLCertVerificationError as error:
            raise BrokerRefusedError(
                f"the certificate of broker {self._address} is not trusted ({error.verify_message}): "
                "give the authority that signed it with --tls-ca"
            ) from error
        except (OSError, ValueError) as error:
            return (0, str(error) or type(error).__name__)
        client.loop_start()
        try:
            outcome = self._outcome.get(timeout=min(_ANSWER_S, max(0.5, deadline - time.monotonic())))
        except queue.Empty:
            return (_SILENT, "it took the connection but never answered")
        self._settled = outcome is None
        return outcome

    def _client_of(self, protocol: MQTTProtocolVersion) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=protocol,
            clean_session=None if protocol == paho.MQTTv5 else True,
        )
        client.on_socket_open = _without_delay
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._received
        client.on_publish = self._published
        client.connect_timeout = 5.0
        client.max_inflight_messages_set(64)
        # paho's own back-off knows no jitter: nodes that lost one broker together must not return together.
        client.reconnect_delay_set(min_delay=1, max_delay=random.randint(2, 4))
        if self._address.username:
            client.username_pw_set(self._address.username, self._address.password)
        if self._address.tls:
            self._secure(client)
        if self._will:
            client.will_set(self._will.topic, self._will.payload, qos=1, retain=True)
        return client

    def _secure(self, client: paho.Client) -> None:
        files = self._certificates
        try:
            client.tls_set(
                ca_certs=files.authority if files else None,
                certfile=files.certificate if files else None,
                keyfile=files.key if files else None,
                tls_version=ssl.PROTOCOL_TLS_CLIENT,
            )
        except (OSError, ValueError, ssl.SSLError) as error:
            raise BrokerAddressError(f"the certificates for {self._address} cannot be used: {error}") from error

    def _connected(self, client: paho.Client, outcome: Any, _flags: Any, code: ReasonCode, properties: Any) -> None:
        if code.is_failure:
            outcome.put((code.value, str(code)))
            return
        limit = getattr(properties, "MaximumPacketSize", None)
        if limit:
            self.largest_payload = min(MAX_MESSAGE_BYTES, limit - 2048)  # Topic and properties need room too.
        with self._lock:
            self.reconnects += 1
            subscriptions = [(topic, qos) for topic, (qos, _) in self._subscriptions.items() if topic not in self._left]
        for topic, qos in subscriptions:
            self._send_subscription(client, topic, qos)
        if self._on_connected:
            self._guarded(self._on_connected)
        outcome.put(None)

    def _disconnected(self, _client: Any, outcome: Any, _flags: Any, _code: Any, _properties: Any) -> None:
        if not self._settled:
            # A broker that knows no MQTT 5 may hang up without a word.
            outcome.put((_UNSPECIFIED, "it hung up without an answer"))

    def _received(self, _client: Any, _outcome: Any, message: paho.MQTTMessage) -> None:
        received_ns = clock.now_ns()
        try:
            topic = message.topic
        except UnicodeDecodeError:  # No broker should let it pass; none of our topics is meant.
            return
        with self._lock:
            handlers = [handler for pattern, (_, handler) in self._subscriptions.items() if matches(pattern, topic)]
        delivery = Delivery(
            topic, bytes(message.payload), received_ns, _from_paho(message.properties), bool(message.retain)
        )
        for handler in handlers:
            self._guarded(partial(handler, delivery))

    def _published(self, _client: Any, _outcome: Any, mid: int, code: ReasonCode, _properties: Any) -> None:
        accepted = code.value < _FAILED
        ack = Ack(accepted, code.value == _NO_SUBSCRIBER, "" if accepted else str(code))
        with self._lock:
            acknowledged = self._acknowledged.pop(mid, None)
            if acknowledged is None and self._publishing:
                self._early_acks[mid] = ack
        if acknowledged:
            self._guarded(lambda: acknowledged(ack))
        self._progress.set()

    def _is_busy(self) -> bool:
        with self._lock:
            return bool(self._acknowledged) or self._client.want_write()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a callback; what it raises would kill paho's thread while it still says it is connected."""
        try:
            step()
        except BaseException as error:
            if self._on_fault is None:
                raise
            self._on_fault(error)

    def _send_subscription(self, client: paho.Client, topic_filter: str, qos: int) -> None:
        if client.protocol == paho.MQTTv5:
            client.subscribe(topic_filter, options=SubscribeOptions(qos=qos))
        else:
            client.subscribe(topic_filter, qos=qos)

    def _to_paho(self, properties: Properties | None) -> PahoProperties | None:
        if properties is None or not self.shares_subscriptions:
            return None
        packed = PahoProperties(PacketTypes.PUBLISH)
        if properties.content_type is not None:
            packed.ContentType = properties.content_type
        if properties.response_topic is not None:
            packed.ResponseTopic = properties.response_topic
        if properties.correlation is not None:
            packed.CorrelationData = properties.correlation
        if properties.expiry_s is not None:
            packed.MessageExpiryInterval = properties.expiry_s
        if properties.traceparent is not None:
            packed.UserProperty = [("traceparent", properties.traceparent)]
        return packed


_ANSWER_S = 3.0  # A broker that knows no MQTT 5 may say nothing at all.
_SILENT = -1
_UNSPECIFIED = 0x80
_NOT_MQTT5 = (_SILENT, _UNSPECIFIED, 0x81, 0x82, 0x84)  # Unspecified, malformed, protocol error, unsupported version.
_REFUSALS = {
    0x85: "choose another --vehicle or --worker name",
    0x86: "check the user name and SKYLANE_BROKER_PASSWORD",
    0x87: "check the user (mqtt://user@host) and SKYLANE_BROKER_PASSWORD, or the certificate",
    0x8A: "this client is banned; ask whoever runs the broker",
    0x8C: "the broker wants another way of authentication",
}


def _ignore(_: Ack) -> None:
    """Nobody asked to be told of this one."""


def _clean_start(client: paho.Client) -> bool | Literal[3]:
    """MQTT 5 asks for a clean start at every connect; 3.1.1 says it once, as its clean session."""
    return True if client.protocol == paho.MQTTv5 else 3  # paho.MQTT_CLEAN_START_FIRST_ONLY


def _without_delay(_client: Any, _outcome: Any, sock: Any) -> None:
    """Turn Nagle's algorithm off: with QoS 1 it holds a frame back until the peer's delayed acknowledgement, 40 ms later."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _from_paho(properties: PahoProperties | None) -> Properties:
    return Properties(
        content_type=getattr(properties, "ContentType", None),
        response_topic=getattr(properties, "ResponseTopic", None),
        correlation=getattr(properties, "CorrelationData", None),
        expiry_s=getattr(properties, "MessageExpiryInterval", None),
        traceparent=dict(getattr(properties, "UserProperty", ())).get("traceparent"),
    )
