"""An MQTT proxy in front of the broker that can drop, repeat or reorder single packets."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from socketserver import BaseRequestHandler, ThreadingTCPServer

from ops.link.link import LOOPBACK
from shared.messages.topics import PREFIX

PUBLISH, PUBACK = 3, 4  # Packet types (MQTT 5, section 2.1.2).
_LENGTH_BYTES = 4  # Maximum size of the length field of a packet.
_READ_BYTES = 1 << 16
_POLL_INTERVAL_S = 0.05  # Between checks whether the proxy is to end.


@dataclass(frozen=True, slots=True)
class Packet:
    """One MQTT packet in its encoded form."""

    data: bytes
    body: int  # Offset of the body, after type and length.

    @property
    def kind(self) -> int:
        """The packet type, for example PUBLISH."""
        return self.data[0] >> 4

    @property
    def topic(self) -> str:
        """The topic of a PUBLISH packet; empty for other packets."""
        if self.kind != PUBLISH:
            return ""
        return self.data[self.body + 2 : self._topic_end].decode()

    @property
    def payload(self) -> bytes:
        """The payload of a PUBLISH packet of MQTT 5."""
        return self.data[self._payload_start :]

    def with_payload(self, payload: bytes) -> "Packet":
        """Returns a PUBLISH packet of MQTT 5 with another payload."""
        variable = self.data[self.body : self._payload_start]
        first = self.data[:1] + encoded_length(len(variable) + len(payload))
        return Packet(first + variable + payload, len(first))

    @property
    def _topic_end(self) -> int:
        return self.body + 2 + int.from_bytes(self.data[self.body : self.body + 2])

    @property
    def _payload_start(self) -> int:
        has_identifier = self.data[0] >> 1 & 3 > 0  # Messages of QoS 0 have none.
        properties = _ends(bytes([0]) + self.data[self._topic_end + 2 * has_identifier :])
        assert properties is not None
        return self._topic_end + 2 * has_identifier + properties[1] - 1


Rule = Callable[[Packet], Sequence[Packet]]  # Returns the packets to forward in place of one.


def as_it_is(packet: Packet) -> Sequence[Packet]:
    """Forwards a packet unchanged."""
    return (packet,)


class Disorder:
    """A proxy rule that repeats messages of one kind of topic and swaps every two; others are unchanged."""

    def __init__(self, kind: str, times: int) -> None:
        """Creates the rule for a topic's first level `kind`, for example `masks`."""
        self.is_on = False
        self.repeated = 0  # Number of additional copies.
        self.passed = 0
        self._prefix = f"{PREFIX}/{kind}/"
        self._times = times
        self._held: list[Packet] = []

    def __call__(self, packet: Packet) -> Sequence[Packet]:
        """Returns the packets to forward."""
        if not packet.topic.startswith(self._prefix):
            return (packet,)
        held, self._held = self._held, []
        copies = [packet] * (self._times if self.is_on else 1)
        self.repeated += len(copies) - 1
        if self.is_on and not held:
            self._held = copies
            return ()
        self.passed += len(copies) + len(held)
        return [*copies, *held]


class MqttProxy(ThreadingTCPServer):
    """Forwards connections to a broker on this machine, packet by packet, through a rule for each direction.

    `to_broker` and `to_client` may be changed at any time; each is called by one thread at a time.
    """

    def __init__(self, to: tuple[str, int]) -> None:
        super().__init__((LOOPBACK, 0), _Connection)
        self.to_broker: Rule = as_it_is
        self.to_client: Rule = as_it_is
        self.to = to
        self.ends: list[tuple[socket.socket, socket.socket]] = []  # The client's and the broker's, of open connections.
        self.url = f"mqtt://{LOOPBACK}:{self.server_address[1]}"
        self._acceptor = threading.Thread(target=self.serve_forever, args=(_POLL_INTERVAL_S,), name="proxy")
        self._acceptor.start()

    def hang_up(self) -> None:
        """Ends all connections towards their clients, which get everything that was read from the broker."""
        for _, broker in list(self.ends):
            with suppress(OSError):
                broker.shutdown(socket.SHUT_RD)

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._acceptor.join()
        for client, broker in list(self.ends):
            for end in (client, broker):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RD)
        self.server_close()


class _Connection(BaseRequestHandler):
    server: MqttProxy

    def handle(self) -> None:
        """Forwards a connection in both directions until both have ended; closes it at once without a broker."""
        proxy, client = self.server, self.request
        with suppress(ConnectionRefusedError), socket.create_connection(proxy.to) as broker:
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            proxy.ends.append((client, broker))
            back = threading.Thread(target=_carry, args=(broker, client, lambda: proxy.to_client), name="proxy-back")
            back.start()
            _carry(client, broker, lambda: proxy.to_broker)
            back.join()
            proxy.ends.remove((client, broker))


def _carry(source: socket.socket, sink: socket.socket, rule: Callable[[], Rule]) -> None:
    """Forwards one direction to its end, applying the current rule to each packet."""
    with suppress(OSError):  # A broken connection gets no more packets.
        for packet in packets(iter(lambda: source.recv(_READ_BYTES), b"")):
            for passed in rule()(packet):
                sink.sendall(passed.data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def packets(pieces: Iterator[bytes]) -> Iterator[Packet]:
    """Yields the complete packets of a stream that arrives in pieces."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while (ends := _ends(held)) and len(held) >= ends[1]:
            body, end = ends
            yield Packet(bytes(held[:end]), body)
            del held[:end]


def encoded_length(length: int) -> bytes:
    """Encodes the length of a packet: seven bits in each byte, the lowest ones first."""
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(encoded) + bytes([length])


def _ends(held: bytes | bytearray) -> tuple[int, int] | None:
    """Returns start and end of the first packet's body; None if its length is incomplete."""
    length = 0
    for place in range(_LENGTH_BYTES):
        if len(held) < place + 2:
            return None
        length |= (held[place + 1] & 0x7F) << 7 * place
        if not held[place + 1] & 0x80:
            return place + 2, place + 2 + length
    raise OSError("not MQTT: the length has more than four bytes")
