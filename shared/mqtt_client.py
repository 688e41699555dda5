"""paho's client, watched: who hears what, when it pings, how it opens sockets and how long it waits between tries."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from shared import clock, mqtt_publication
from shared.back_off import BackOff
from shared.bus import Will
from shared.errors import SkylaneError
from shared.fields import MAX_MESSAGE_BYTES
from shared.link_watch import LinkWatch
from shared.mqtt_publication import Publication

KEEPALIVE_S = 15
_CONNECT_TIMEOUT_S = 5.0
_MOST_INFLIGHT = 64
_KIND, _PUBLISH = 0xF0, 0x30  # Of a packet's first byte.
_WAKE = b"0"
_MOST_BYTES = MAX_MESSAGE_BYTES + (1 << 17)  # Of a publication: its topic and properties have 64 KiB each.
_MOST_OTHER_BYTES = 1 << 17  # Of any other packet.
_TOO_LARGE = b"\x95"  # Reason codes: "Packet too large", and "Implementation specific error".
_OF_ITS_OWN = b"\x83"


class WatchedClient(paho.Client):
    """A client that tells a watch what it hears, and leaves it to the watch to call a connection dead.

    paho's own keepalive would close a connection on which its ping waits behind large frames, though the broker
    acknowledges one after the other; and one that only went dead would hold it for two keepalives.
    """

    def __init__(
        self,
        client_id: str,
        protocol: MQTTProtocolVersion,
        watch: LinkWatch,
        *,
        received: Callable[[Publication], None],
        will: Will | None,
        secure: Callable[[], ssl.SSLContext] | None,
        timeout_s: float,
    ) -> None:
        """`received` is told, on the network thread, of every publication. `secure` gives what secures a connection, anew for each: a certificate may be renewed under a node that runs.

        `timeout_s`: after so long the system gives up what was sent and not acknowledged.
        """
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,
            clean_session=None if protocol == MQTTProtocolVersion.MQTTv5 else True,
        )
        self._watch = watch
        self._received = received
        self._writing = threading.RLock()  # Whoever has it writes; asked of paho within paho's own call of it, too.
        self._secure = secure
        self._give_up_ms = round(timeout_s * 1e3)
        self._back_off = BackOff()
        self._accepted_ns: int | None = None
        self.turned_ns = 0  # When the network thread last came round, which it does every second while it is well.
        self.network_thread: threading.Thread | None = None  # None: not connected yet.
        # Given as functions: a client that held itself would hold its sockets until the collector comes.
        self.on_socket_open = _opened
        self.on_socket_close = _closed
        self.on_connect_fail = _closed
        self.connect_timeout = _CONNECT_TIMEOUT_S
        self.max_inflight_messages_set(_MOST_INFLIGHT)
        if secure:
            self.tls_set_context(secure())
        if will:
            self.will_set(will.topic, will.payload, qos=1, retain=True)

    def open(self, host: str, port: int) -> None:
        """Connect, as far as the request to be accepted.

        No properties: a broker of 3.1.1 reads them as something else and waits for the rest. A session then ends with
        its connection, so that a worker that was away finds no queue of old frames.

        Raises:
            OSError, ValueError: nobody listens there, or it cannot be reached.
        """
        # MQTT 5 asks for a clean start at every connect; 3.1.1 says it once, as its clean session.
        clean_start: bool | Literal[3] = True if self.protocol == paho.MQTTv5 else 3  # paho.MQTT_CLEAN_START_FIRST_ONLY
        self.connect(host, port, KEEPALIVE_S, clean_start=clean_start)

    def accepted(self) -> None:
        """The broker has accepted the connection; to be called by the network thread."""
        self.network_thread = threading.current_thread()
        self.turned_ns = self._accepted_ns = clock.now_ns()
        self._watch.accepted(self.keepalive)  # As the broker wishes, which may be other than we asked for.

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
        if threading.current_thread() is not self.network_thread:
            self._reset_sockets()

    def loop_misc(self) -> MQTTErrorCode:
        """Come round; in place of paho's keepalive."""
        self.turned_ns = clock.now_ns()
        if self._watch.wants_ping(self.turned_ns):
            self._send_pingreq()
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def opened(self, sock: Any) -> None:
        """A socket stands."""
        # Nagle's algorithm, with QoS 1, holds a frame back until the peer's delayed acknowledgement, 40 ms later.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._give_up_ms)
        self.turned_ns = clock.now_ns()
        self._watch.opened(self.turned_ns)

    def closed(self) -> None:
        """A socket is gone, or there came to be none.

        The wait before the next is drawn here: paho's own knows no chance, and nodes that lost one broker together must
        not return together.
        """
        self._watch.closed()
        held_s = 0.0 if self._accepted_ns is None else (clock.now_ns() - self._accepted_ns) / 1e9
        self._accepted_ns = None
        wait_s: Any = self._back_off.wait_s(held_s)  # paho takes fractions, though it declares whole seconds.
        self.reconnect_delay_set(wait_s, wait_s)

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        """As paho's, which fails at what Mosquitto says of a message over its `message_size_limit`.

        MQTT has that code, but not for an acknowledgement. paho would connect and send the message again, for ever.
        """
        packet = self._in_packet["packet"]
        if self.protocol == MQTTProtocolVersion.MQTTv5 and packet[2:3] == _TOO_LARGE:
            self._in_packet["packet"] = packet[:2] + _OF_ITS_OWN
        return super()._handle_pubackcomp(cmd)

    def _packet_read(self) -> MQTTErrorCode:
        """As paho's, which puts a packet's body together from pieces; here it is read to where it will lie."""
        packet: Any = self._in_packet
        if not packet["to_process"]:
            result = super()._packet_read()  # As far as its length.
            if not packet["to_process"]:
                return result
        try:
            self._fill(packet)
        except BlockingIOError:
            return MQTTErrorCode.MQTT_ERR_AGAIN
        except OSError:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        return super()._packet_read()

    def _fill(self, packet: Any) -> None:
        """Read the rest of a packet's body.

        Raises:
            BlockingIOError: not all of it has come yet.
            OSError: the connection has ended.
        """
        if not packet["packet"]:
            if packet["to_process"] > (_MOST_BYTES if packet["command"] & _KIND == _PUBLISH else _MOST_OTHER_BYTES):
                raise ConnectionError  # It says so in five bytes, and memory would be taken for it.
            # Unlike a bytearray an array is not filled first; small packets are for paho to read, which wants the former.
            is_ours = packet["command"] & _KIND == _PUBLISH
            packet["packet"] = (
                np.empty(packet["to_process"], np.uint8).data if is_ours else bytearray(packet["to_process"])
            )
        body = memoryview(packet["packet"])
        while left := packet["to_process"]:
            packet["to_process"] -= self._receive(body[len(body) - left :])

    def _receive(self, room: memoryview) -> int:
        sock: Any = self._sock  # paho declares less than a socket can do.
        if sock is None:
            raise ConnectionError
        try:
            count: int = sock.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        if not count:
            raise ConnectionError
        self._watch.heard(clock.now_ns())
        return count

    def _handle_publish(self) -> MQTTErrorCode:
        """As paho's, for a body that is not to be copied. What comes twice at most is none that we asked for."""
        packet = self._in_packet
        is_5 = self.protocol == MQTTProtocolVersion.MQTTv5
        try:
            publication = mqtt_publication.read(packet["command"], memoryview(packet["packet"]), has_properties=is_5)
        except mqtt_publication.MalformedError:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if publication.qos > 1:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        with self._in_callback_mutex:
            self._received(publication)
        return self._send_puback(publication.number) if publication.qos else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _packet_queue(
        self, command: int, packet: bytes | bytearray, mid: int, qos: int, info: paho.MQTTMessageInfo | None = None
    ) -> MQTTErrorCode:
        """As paho's, which has the network thread send it, whose waking takes longer, and copies it before.

        Here whoever publishes sends it as far as the network takes it, unless another thread is at that. What is
        encrypted is left to the network thread: no two threads may have to do with such a connection at a time.
        """
        view: Any = memoryview(packet)  # paho declares bytes.
        sends_itself = command & _KIND == _PUBLISH and qos and self._thread and not self._secure
        if not sends_itself or not self._writing.acquire(blocking=False):
            return super()._packet_queue(command, view, mid, qos, info)
        try:
            sent = None if self._out_packet else self._sent_at_once(view)
            if sent is None:
                return super()._packet_queue(command, view, mid, qos, info)
            if sent < len(view):  # Ahead of what others have queued meanwhile: it is the rest of what is on the wire.
                left: Any = {"command": command, "mid": mid, "qos": qos, "info": info}
                self._out_packet.appendleft(left | {"packet": view, "pos": sent, "to_process": len(view) - sent})
        finally:
            self._writing.release()
        if self._out_packet and self._sockpairW is not None:
            with suppress(BlockingIOError):  # The network thread has been woken, then.
                self._sockpairW.send(_WAKE)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _sent_at_once(self, view: Any) -> int | None:
        """How many bytes of a packet the network took; None: it took none, and the network thread is to see why.

        Nothing of paho's is called that tells of what was sent: whoever publishes may be one who is being told.
        """
        try:
            return self._sock_send(view)
        except (OSError, AttributeError, ValueError):
            return None

    def _packet_write(self) -> MQTTErrorCode:
        with self._writing:
            return super()._packet_write()

    def reconnect(self) -> MQTTErrorCode:
        """As paho's, while nobody sends: what is left of a packet must not go out on another connection."""
        with self._writing:
            return super().reconnect()

    def _sock_close(self) -> None:
        """As paho's, while nobody sends: the socket's number may be another's the moment after."""
        with self._writing:
            super()._sock_close()

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._in_packet["to_process"]:
            raise BlockingIOError  # It is for `_fill` to read a body.
        data = super()._sock_recv(bufsize)
        if data:
            self._watch.heard(clock.now_ns())
        return data

    def _sock_send(self, buf: bytes | bytearray) -> int:
        """As much as the system takes: TLS takes 16 KiB at a call, and paho copies all that is left before each."""
        sent = super()._sock_send(buf)
        left: Any = memoryview(buf)  # paho declares bytes, and sockets take either.
        while sent < len(buf):
            try:
                sent += super()._sock_send(left[sent:])
            except BlockingIOError:
                break
        return sent

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        """As paho's, which leaves the socket open where the handshake fails."""
        assert self._secure is not None
        try:
            context = self._secure()
        except SkylaneError as error:  # The network thread survives errors of the network alone.
            tcp_sock.close()
            raise ConnectionError(str(error)) from error
        sock = context.wrap_socket(tcp_sock, server_hostname=self.host, do_handshake_on_connect=False)
        try:
            sock.settimeout(_CONNECT_TIMEOUT_S)
            sock.do_handshake()
        except BaseException:
            sock.close()
            raise
        return sock


def _opened(client: Any, _data: Any, sock: Any) -> None:
    client.opened(sock)


def _closed(client: Any, *_: Any) -> None:
    client.closed()
