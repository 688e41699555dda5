"""paho's MQTT client with link monitoring, low-latency sockets and random waits between connection attempts."""

import random
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from shared import clock
from shared.errors import SkylaneError
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.mqtt import packets
from shared.mqtt.bus import Will
from shared.mqtt.packets import PublishPacket

MAX_INFLIGHT = 1024
"""QoS 1 publications without an acknowledgement; further ones are refused, except retained ones. The same number of
QoS 0 publications may wait to be written."""
MAX_INFLIGHT_BYTES = 4 * MAX_MESSAGE_BYTES
"""Payload bytes of each of these two groups; a single message is always admitted."""
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 15


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Timeouts and limits of one connection."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S  # Time for the first connection, all attempts together.
    connack_timeout_s: float = 3.0  # Time for the reply to one CONNECT; a broker without MQTT 5 may never reply.
    reconnect_timeout_s: float = 5.0  # Time for the broker to accept a later connection.
    # If the broker is silent this long while it owes an acknowledgement, reconnect.
    link_timeout_s: float = KEEPALIVE_S
    keepalive_s: int = KEEPALIVE_S
    offline_notice_s: float = 10.0  # Time without a connection before the node is notified.
    callback_timeout_s: float = KEEPALIVE_S  # A callback that blocks the network thread longer is reported as a fault.
    # Slowest link to expect; limits payloads to what it carries within a keepalive.
    min_bandwidth_mbps: float | None = None
    max_inflight: int = MAX_INFLIGHT
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES


# A check that comes this late means that the process was suspended, not that the link is dead.
STALL_NS = 2_000_000_000


class LinkMonitor:
    """Decides whether a connection is dead, without using sockets or clocks: callers pass the time in nanoseconds.

    A connection is dead when a publication or a subscription has awaited its acknowledgement for the timeout and
    nothing was received in that time. Any received bytes count, so a large message on a slow link does not look like
    silence. An idle connection is left to MQTT's own keepalive. A connection that the broker does not accept in time is
    dead too. Thread-safe.
    """

    def __init__(self, timeout_s: float, accept_timeout_s: float) -> None:
        self._timeout_ns = round(timeout_s * 1e9)
        self._accept_timeout_ns = round(accept_timeout_s * 1e9)
        self._lock = threading.Lock()
        self._opened_ns: int | None = None  # None: there is no connection.
        self.is_accepted = False
        self._pending = 0
        self._pending_since_ns = 0  # Time at which `_pending` last rose from zero.
        self._checked_ns = 0
        self.last_received_ns = 0

    def opened(self, now_ns: int) -> None:
        """Starts to monitor a new connection; messages sent over an earlier one no longer count."""
        with self._lock:
            self._opened_ns = self.last_received_ns = self._checked_ns = now_ns
            self.is_accepted = False
            self._pending = 0

    def accepted(self) -> None:
        """Records that the broker accepted the connection."""
        self.is_accepted = True

    def closed(self) -> None:
        """Stops monitoring until the next connection."""
        self._opened_ns = None

    def set_pending(self, count: int, now_ns: int) -> None:
        """Sets how many sent messages await an acknowledgement; call it whenever that number changes."""
        with self._lock:
            if count and not self._pending:
                self._pending_since_ns = now_ns
            self._pending = count

    def received(self, now_ns: int) -> None:
        """Records that bytes were received."""
        self.last_received_ns = now_ns

    def is_dead(self, now_ns: int) -> bool:
        """Returns whether the connection must be replaced. Call it at least once a second."""
        with self._lock:
            stalled = not 0 <= now_ns - self._checked_ns <= STALL_NS
            self._checked_ns = now_ns
            if self._opened_ns is None:
                return False
            if stalled:  # All timeouts start again.
                self._opened_ns = self._pending_since_ns = self.last_received_ns = now_ns
                return False
            if not self.is_accepted:
                return now_ns - self._opened_ns >= self._accept_timeout_ns
            silent_since_ns = max(self._pending_since_ns, self.last_received_ns)
            return bool(self._pending) and now_ns - silent_since_ns >= self._timeout_ns


_CONNECT_TIMEOUT_S = 5.0
_MAX_SENT_UNACKNOWLEDGED = 64  # QoS 1 publications on the wire at a time; paho queues the others.
_TYPE_MASK, _PUBLISH, _PUBACK = 0xF0, 0x30, 0x40  # First byte of a packet.
_REASON_AT = 2  # Offset of the reason code in a PUBACK, after its packet identifier.
_IMPLEMENTATION_ERROR = 0x83
_PUBACK_REASONS = (0x00, 0x10, 0x80, _IMPLEMENTATION_ERROR, 0x87, 0x90, 0x91, 0x97, 0x99)  # MQTT 5.0, table 3-4.
_MAX_PACKET_BYTES = MAX_MESSAGE_BYTES + (1 << 17)  # The topic and the properties may add 64 KiB each.


class MonitoredClient(paho.Client):
    """A client that reports received bytes to a `LinkMonitor`.

    It uses paho's public interface, except for one method: `_packet_handle`.
    """

    def __init__(
        self,
        client_id: str,
        protocol: MQTTProtocolVersion,
        monitor: LinkMonitor,
        settings: MqttSettings,
        *,
        received: Callable[[PublishPacket], None],
        will: Will | None,
        context: ssl.SSLContext | None,
        reload_certificates: Callable[[ssl.SSLContext], None],
    ) -> None:
        """Creates a client that is not connected.

        `received` is called on the network thread with every publication. `reload_certificates` loads renewed
        certificates into the TLS `context` before each connection.
        """
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,
            clean_session=None if protocol == MQTTProtocolVersion.MQTTv5 else True,
        )
        self._monitor = monitor
        self._received = received
        self._context = context
        self._reload_certificates = reload_certificates
        self._keepalive_s = settings.keepalive_s
        self._tcp_user_timeout_ms = round(2 * settings.link_timeout_s * 1e3)
        self._backoff = ExponentialBackoff()
        self._accepted_ns: int | None = None
        self.loop_ns = 0  # Last iteration of the network loop, which a healthy thread runs at least once a second.
        self.network_thread: threading.Thread | None = None  # None: not connected yet.
        # Plain functions, as bound methods would be a reference cycle that keeps the sockets open until garbage collection.
        plain: Any = type(self)
        self.on_pre_connect = plain.renew_certificates
        self.on_socket_open = plain.socket_opened
        self.on_socket_close = self.on_connect_fail = plain.socket_closed
        self.connect_timeout = _CONNECT_TIMEOUT_S
        self.max_inflight_messages_set(_MAX_SENT_UNACKNOWLEDGED)
        self.manual_ack_set(on=True)  # `_deliver_publish` acknowledges.
        if context is not None:
            self.tls_set_context(context)
        if will:
            self.will_set(will.topic, will.payload, qos=1, retain=True)

    def open(self, host: str, port: int) -> None:
        """Connects and sends the CONNECT packet; the reply is not awaited.

        The session is clean, so that a worker that was offline does not receive a queue of old frames.

        Raises:
            OSError, ValueError: the broker cannot be reached.
        """
        if self.protocol != paho.MQTTv5:
            self.connect(host, port, self._keepalive_s)
            return
        limits = Properties(PacketTypes.CONNECT)
        limits.MaximumPacketSize = _MAX_PACKET_BYTES
        self.connect(host, port, self._keepalive_s, clean_start=True, properties=limits)

    def accepted(self) -> None:
        """Records that the broker accepted the connection; the network thread must call it."""
        self.network_thread = threading.current_thread()
        self.loop_ns = self._accepted_ns = clock.now_ns()
        self._monitor.accepted()

    def abort(self) -> None:
        """Breaks the connection; the network thread notices and reconnects. Thread-safe."""
        sock = self.socket()
        if isinstance(sock, socket.socket):
            try:
                # SSLSocket.shutdown would drop the TLS session while the network thread uses it.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # It is closed already.

    def stop(self) -> None:
        """Disconnects and stops the network thread; `abort` shortens the wait for a broker that does not read."""
        self.disconnect()
        self.loop_stop()

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Extends paho's method: reports received bytes, but not the end of a connection, which is also read."""
        received_ns = clock.now_ns()
        code = super().loop_read(max_packets)
        if code is MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._monitor.received(received_ns)
        return code

    def loop_misc(self) -> MQTTErrorCode:
        """Extends paho's method, which sends pings: sends none while other data waits to be sent.

        The ping would wait behind that data, and paho would close a slow connection that still delivers large frames.
        The monitor judges such a connection by its acknowledgements.
        """
        self.loop_ns = clock.now_ns()
        return MQTTErrorCode.MQTT_ERR_SUCCESS if self.want_write() else super().loop_misc()

    def renew_certificates(self, _data: Any = None) -> None:
        """Loads the certificates again before a connection.

        Raises:
            ConnectionError: a file cannot be read; paho retries only after errors of this kind.
        """
        if self._context is not None:
            try:
                self._reload_certificates(self._context)
            except SkylaneError as error:
                raise ConnectionError(str(error)) from error

    def socket_opened(self, _data: Any, sock: Any) -> None:
        """Sets the options of a connected socket."""
        # Nagle's algorithm would hold a QoS 1 frame back for the peer's delayed acknowledgement, 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._tcp_user_timeout_ms)
        self.loop_ns = clock.now_ns()
        self._monitor.opened(self.loop_ns)

    def socket_closed(self, *_: Any) -> None:
        """Draws the wait before the next attempt, after a connection that ended or could not be opened.

        paho's own waits are not random, so nodes that lost one broker together would reconnect together.
        """
        self._monitor.closed()
        held_s = 0.0 if self._accepted_ns is None else (clock.now_ns() - self._accepted_ns) / 1e9
        self._accepted_ns = None
        wait_s: Any = self._backoff.wait_s(held_s)  # paho accepts fractions although it declares int.
        self.reconnect_delay_set(wait_s, wait_s)

    def _packet_handle(self) -> MQTTErrorCode:
        """Replaces paho's handling of two packets.

        paho copies a publication's payload twice for each property, so half a megabyte of properties takes minutes. It
        also closes the connection after a PUBACK with a reason code of other packets, which Mosquitto sends for a
        message above its `message_size_limit`.

        This is the only private method that is overridden; `tests/shared/mqtt/test_paho_client.py` checks what it uses.
        """
        packet = self._in_packet
        kind, content = packet["command"] & _TYPE_MASK, packet["packet"]
        if kind == _PUBLISH:
            return self._deliver_publish(packet)
        if kind == _PUBACK and len(content) > _REASON_AT and content[_REASON_AT] not in _PUBACK_REASONS:
            content[_REASON_AT] = _IMPLEMENTATION_ERROR
        return super()._packet_handle()

    def _deliver_publish(self, packet: Any) -> MQTTErrorCode:
        """Delivers a publication and acknowledges it. QoS 2 is a protocol error, as no subscription asks for it."""
        is_5 = self.protocol == MQTTProtocolVersion.MQTTv5
        try:
            publication = packets.read_publish(packet["command"], memoryview(packet["packet"]), has_properties=is_5)
        except packets.MalformedPublishError:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if publication.qos > 1:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._received(publication)
        return self.ack(publication.mid, publication.qos) if publication.qos else MQTTErrorCode.MQTT_ERR_SUCCESS


_INITIAL_S = 0.2
_LONGEST_S = 2.0
_STABLE_S = 5.0  # A connection that lasted this long resets the back-off.


class ExponentialBackoff:
    """Exponential back-off with full jitter: random waits from a range that doubles with each failure.

    The jitter keeps nodes that lost one broker together from reconnecting at the same moment. A client that the broker
    disconnects at once, because another client uses its id, slows down too.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._random = random.Random()  # Not the generator of the process, whose seed may be somebody else's.

    def wait_s(self, held_s: float = 0.0) -> float:
        """Returns the next wait in seconds after a connection that lasted `held_s`; 0 if the attempt failed."""
        self._failures = 0 if held_s >= _STABLE_S else self._failures
        upper_s = min(_LONGEST_S, _INITIAL_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        return self._random.uniform(0.0, upper_s)
