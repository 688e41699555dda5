"""paho's MQTT client with a link watch, sockets set up for low latency, and random waits between connection attempts."""

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from shared import clock
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.errors import SkylaneError
from shared.mqtt import publish_packet
from shared.mqtt.backoff import ExponentialBackoff
from shared.mqtt.bus import Will
from shared.mqtt.keepalive import LinkMonitor
from shared.mqtt.publish_packet import Publication

_CONNECT_TIMEOUT_S = 5.0
_MOST_INFLIGHT = 64
_KIND, _PUBLISH, _PUBACK = 0xF0, 0x30, 0x40  # Of a packet's first byte.
_CODE_AT = 2  # In an acknowledgement, behind its number.
_SPECIFIC_ERROR = 0x83
_PUBACK_CODES = (0x00, 0x10, 0x80, _SPECIFIC_ERROR, 0x87, 0x90, 0x91, 0x97, 0x99)  # MQTT 5.0, table 3-4.
_MOST_BYTES = MAX_MESSAGE_BYTES + (1 << 17)  # Of a publication: its topic and properties have 64 KiB each.


class WatchedClient(paho.Client):
    """A client that tells a `LinkMonitor` what it hears.

    It uses paho's public interface, but for one method: `_packet_handle`.
    """

    def __init__(
        self,
        client_id: str,
        protocol: MQTTProtocolVersion,
        watch: LinkMonitor,
        *,
        received: Callable[[Publication], None],
        will: Will | None,
        context: ssl.SSLContext | None,
        renew: Callable[[ssl.SSLContext], None],
        timeout_s: float,
        keepalive_s: int,
    ) -> None:
        """`received` is called, on the network thread, with every publication.

        `context`: for TLS. `renew` loads the certificates into it again before each connection: they may have been
        renewed. `timeout_s`: after so long the system gives up what was sent and not acknowledged.
        """
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,
            clean_session=None if protocol == MQTTProtocolVersion.MQTTv5 else True,
        )
        self._watch = watch
        self._received = received
        self._context = context
        self._renew = renew
        self._keepalive_s = keepalive_s
        self._give_up_ms = round(timeout_s * 1e3)
        self._back_off = ExponentialBackoff()
        self._accepted_ns: int | None = None
        self.turned_ns = 0  # When the network thread last came round, which it does every second while it is well.
        self.network_thread: threading.Thread | None = None  # None: not connected yet.
        # Given as functions: a client that held itself would hold its sockets until the collector comes.
        self.on_pre_connect = _connecting
        self.on_socket_open = _opened
        self.on_socket_close = _closed
        self.on_connect_fail = _closed
        self.connect_timeout = _CONNECT_TIMEOUT_S
        self.max_inflight_messages_set(_MOST_INFLIGHT)
        self.manual_ack_set(on=True)  # By `_publication_came`.
        if context is not None:
            self.tls_set_context(context)
        if will:
            self.will_set(will.topic, will.payload, qos=1, retain=True)

    def open(self, host: str, port: int) -> None:
        """Connect, as far as the request to be accepted.

        A session ends with its connection, so that a worker that was away finds no queue of old frames.

        Raises:
            OSError, ValueError: nobody listens there, or it cannot be reached.
        """
        if self.protocol != paho.MQTTv5:
            self.connect(host, port, self._keepalive_s)  # Clean by `clean_session`.
            return
        limits = Properties(PacketTypes.CONNECT)
        limits.MaximumPacketSize = _MOST_BYTES
        self.connect(host, port, self._keepalive_s, clean_start=True, properties=limits)

    def accepted(self) -> None:
        """The broker has accepted the connection; to be called by the network thread."""
        self.network_thread = threading.current_thread()
        self.turned_ns = self._accepted_ns = clock.now_ns()
        self._watch.accepted()

    def cut(self) -> None:
        """Break the connection; the network thread finds it so and connects again. May be called by any thread."""
        sock = self.socket()
        if isinstance(sock, socket.socket):
            try:
                # Not SSLSocket's own, which pulls the session from under the network thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # It is closed already.

    def end(self) -> None:
        """Leave the broker and end the network thread; `cut` shortens it where nobody listens."""
        self.disconnect()
        self.loop_stop()

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """As paho's. Bytes have come."""
        self._watch.heard(clock.now_ns())
        return super().loop_read(max_packets)

    def loop_misc(self) -> MQTTErrorCode:
        """As paho's, which sends pings, but while something waits to be sent: a ping would wait behind it.

        paho would then close a connection on which large frames crawl, though the broker acknowledges one after the
        other. Whether it is dead the watch judges by those acknowledgements.
        """
        self.turned_ns = clock.now_ns()
        return MQTTErrorCode.MQTT_ERR_SUCCESS if self.want_write() else super().loop_misc()

    def connecting(self) -> None:
        """A socket is about to be opened.

        Raises:
            ConnectionError: a certificate cannot be read any more; paho tries again after errors of the network alone.
        """
        if self._context is not None:
            try:
                self._renew(self._context)
            except SkylaneError as error:
                raise ConnectionError(str(error)) from error

    def opened(self, sock: Any) -> None:
        """A socket is connected."""
        # Nagle's algorithm, with QoS 1, holds a frame back until the peer's delayed acknowledgement, 40 ms later.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._give_up_ms)
        self.turned_ns = clock.now_ns()
        self._watch.opened(self.turned_ns)

    def closed(self) -> None:
        """A socket is gone, or none could be opened.

        The wait before the next is drawn here: paho's own is not random, and nodes that lost one broker together must
        not return together.
        """
        self._watch.closed()
        held_s = 0.0 if self._accepted_ns is None else (clock.now_ns() - self._accepted_ns) / 1e9
        self._accepted_ns = None
        wait_s: Any = self._back_off.wait_s(held_s)  # paho takes fractions, though it declares whole seconds.
        self.reconnect_delay_set(wait_s, wait_s)

    def _packet_handle(self) -> MQTTErrorCode:
        """As paho's, except for two packets that paho handles badly.

        It copies a publication's payload twice for each property: half a megabyte of properties took minutes. And an
        acknowledgement whose code belongs to other packets makes it close the connection; Mosquitto sends one for a
        message over its `message_size_limit`.

        The one private method that is overridden; `tests/shared/mqtt/test_paho_client.py` holds what it relies on.
        """
        packet = self._in_packet
        kind, content = packet["command"] & _KIND, packet["packet"]
        if kind == _PUBLISH:
            return self._publication_came(packet)
        if kind == _PUBACK and len(content) > _CODE_AT and content[_CODE_AT] not in _PUBACK_CODES:
            content[_CODE_AT] = _SPECIFIC_ERROR
        return super()._packet_handle()

    def _publication_came(self, packet: Any) -> MQTTErrorCode:
        """At most QoS 1 was asked for."""
        is_5 = self.protocol == MQTTProtocolVersion.MQTTv5
        try:
            publication = publish_packet.read(packet["command"], memoryview(packet["packet"]), has_properties=is_5)
        except publish_packet.MalformedError:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if publication.qos > 1:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._received(publication)
        return self.ack(publication.number, publication.qos) if publication.qos else MQTTErrorCode.MQTT_ERR_SUCCESS


def _connecting(client: Any, _data: Any) -> None:
    client.connecting()


def _opened(client: Any, _data: Any, sock: Any) -> None:
    client.opened(sock)


def _closed(client: Any, *_: Any) -> None:
    client.closed()
