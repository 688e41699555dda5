"""Checks of the way to the workers: broker, certificates, rights, packet sizes, workers and their models, a test frame."""

import queue
import secrets
import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as replace_fields

from cloud.config import CloudConfig
from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import prepare
from edge.transports.opening import open_transport
from edge.transports.transport import TRANSPORTS, Transport
from edge.workers.worker_directory import WorkerDirectory
from ops.doctor.check import Check
from shared import clock
from shared.clock import Deadline, Exchange
from shared.errors import SkylaneError, reason_of
from shared.imaging.frames import Frame, Layout
from shared.messages import topics
from shared.messages.clock_probes import Echo, Probe, pack_probe, unpack_echo
from shared.messages.frame import FRAME_CONTENT_TYPE, FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FrameId
from shared.mqtt.bus import Ack, Delivery, Properties
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address, Certificates
from shared.network.tls import certificate_expiries, describe_tls_error, server_certificate_expiry
from shared.task import task_named

_NAME = "doctor"  # The camera of test frames, and the model of messages that no worker shall get.
_TCP_S = 2.0
_LOGIN_S = 2.0
_REPLY_S = 1.0  # For acknowledgements, retained messages, and refusals of a worker.
_FRAME_S = 15.0  # For the answer to a test frame, which may be the first one of a worker.
_FRAME_SIZE = (720, 1280)
_SOON_DAYS = 14
_LARGE_OFFSET_NS = 1_000_000_000
_RAW_BYTES = 3  # Of a pixel.
_MAX_WORKERS = 256
_SHOWN_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """The node whose set-up is checked."""

    config: EdgeConfig | CloudConfig
    name: str

    @property
    def role(self) -> str:
        """`vehicle` or `worker`."""
        return "vehicle" if isinstance(self.config, EdgeConfig) else "worker"

    @property
    def renewal(self) -> str:
        """The command that issues its certificate again."""
        return f"skylane broker certs {self.config.certs or 'certs'} --{self.role} {self.name} --again"


def connection(node: Node, *, with_frame: bool) -> Iterator[Check]:
    """Checks the way to the workers, step by step; the first step that fails ends it."""
    config = node.config
    if isinstance(config, CloudConfig) and config.no_broker:
        yield Check.skipped("broker", "this worker has none")
    elif isinstance(config, EdgeConfig) and TRANSPORTS[config.transport].needs_addresses:
        yield from _workers_by_address(config, with_frame=with_frame)
    else:
        yield from _by_broker(node, with_frame=with_frame)


def _by_broker(node: Node, *, with_frame: bool) -> Iterator[Check]:
    config = node.config
    try:
        address = Address.parse(config.broker)
        certificates = config.connection.certificates(node.name)
    except SkylaneError as error:
        yield Check.failed("broker", error)
        return
    reached = _reach(address)
    yield reached
    if reached.remedy:
        return
    if address.tls:
        tls = list(_tls(node, address, certificates))
        yield from tls
        if tls[0].remedy:
            return
    elif certificates is None:
        yield Check.skipped("TLS", "mqtt:// has none")
    with ExitStack() as stack:
        try:
            options = replace(config.connection, connect_timeout_s=_LOGIN_S)
            identity = f"skylane-{_NAME}-{secrets.token_hex(6)}"
            bus = stack.enter_context(options.open(identity, None, name=node.name))
        except SkylaneError as error:
            yield _refused_login(node, address, error)
            return
        yield Check.ok("login", f"accepted as {address.username or node.name}")
        if bus.supports_shared_subscriptions:
            yield Check.ok("MQTT version", "5")
        else:
            cause = "the broker knows 3.1.1 only: one worker for each model, and no reasons for refused messages"
            yield Check.warning("MQTT version", cause, f"skylane broker --kind mosquitto --port {address.port}")
        yield from _Conversation(node, bus).checks(with_frame=with_frame)


def _reach(address: Address) -> Check:
    try:
        socket.create_connection((address.host, address.port), timeout=_TCP_S).close()
    except (OSError, ValueError) as error:
        cause = f"no broker at {address}: {reason_of(error)}"
        if isinstance(error, socket.gaierror):
            return Check.error("broker", cause, "export SKYLANE_BROKER=mqtt://HOST:PORT")
        return Check.error("broker", cause, f"skylane broker --port {address.port}")
    return Check.ok("broker", f"{address} accepts connections")


def _tls(node: Node, address: Address, certificates: Certificates | None) -> Iterator[Check]:
    """Checks the broker's certificate, then the expiry of this node's; the first check is the handshake's."""
    folder = node.config.certs or Path("certs")
    again = f"skylane broker certs {folder} --broker {address.host} --again"
    try:
        expires_s = server_certificate_expiry(address, certificates, _TCP_S)
    except ssl.SSLError as error:
        cause, _, advice = (describe_tls_error(error, address, certificates) or str(error)).rpartition(": ")
        code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else None
        fetch = f"scp {address.host}:{folder / 'ca.crt'} {folder / 'ca.crt'}"
        remedy = again if code in _ON_BROKER else fetch if code is not None else advice
        yield Check.error("TLS", cause or advice, remedy)
        return
    except SkylaneError as error:
        yield replace(Check.failed("TLS", error), remedy=node.renewal)
        return
    except OSError as error:
        cause = f"{address} ends the handshake ({reason_of(error)}): that port has no TLS"
        yield Check.error("TLS", cause, f"export SKYLANE_BROKER=mqtt://{address.host}:{address.port}")
        return
    yield _expiry("TLS", "the broker's certificate", expires_s, again)
    if certificates is not None and certificates.certificate is not None:
        with suppress(SkylaneError):  # The library is missing; the broker checks it at the login.
            for expires in certificate_expiries(Path(certificates.certificate)):
                yield _expiry("own certificate", certificates.certificate, expires.timestamp(), node.renewal)


_ON_BROKER = {9, 10, 26, 62, 64}  # Codes of X509_V_ERR_* that another certificate of the broker mends.


def _expiry(name: str, what: str, expires_s: float, remedy: str) -> Check:
    days = int((expires_s - clock.now_ns() / 1e9) // 86_400)
    if days < 0:
        return Check.error(name, f"{what} expired {-days} days ago", remedy)
    if days < _SOON_DAYS:
        return Check.warning(name, f"{what} expires in {days} days", remedy)
    return Check.ok(name, f"trusted; {what} is valid for {days} days")


def _refused_login(node: Node, address: Address, error: SkylaneError) -> Check:
    failed = Check.failed("login", error)
    if "sent no reply" in failed.finding:
        cause = f"broker {address} accepts connections but does not answer: it hangs, or is no MQTT broker"
        return Check.error("login", cause, f"skylane broker --port {address.port}")
    if "certificate" in failed.finding:
        return replace(failed, remedy=node.renewal)
    if "refuses" in failed.finding:
        scheme = "mqtts" if address.tls else "mqtt"
        named = f"export SKYLANE_BROKER={scheme}://USER@{address.host}:{address.port}"
        return replace(failed, remedy="export SKYLANE_BROKER_PASSWORD=PASSWORD" if address.username else named)
    return failed


class _Conversation:
    """Exchanges messages with the broker and the workers over one connection, as the node could."""

    def __init__(self, node: Node, bus: MqttBus) -> None:
        self._node = node
        self._bus = bus
        self._session = uuid.uuid4().hex[:12]
        self._echoes: queue.SimpleQueue[tuple[str, Echo, int]] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self._statuses: dict[str, NodeStatus] = {}
        self._own_status: NodeStatus | None = None  # Of a vehicle of this name.
        self._directory = WorkerDirectory(node.config.model if isinstance(node.config, EdgeConfig) else "")

    def checks(self, *, with_frame: bool) -> Iterator[Check]:
        """Checks what the node may write and read, then the workers."""
        self._bus.subscribe(topics.WORKER_STATUS.filter(), 1, self._on_status)
        if isinstance(self._node.config, CloudConfig):
            yield from self._worker_rights()
            yield self._packet(None)
            yield self._workers()
            return
        config = self._node.config
        name = self._node.name
        self._bus.subscribe(topics.ECHOES.filter(vehicle=name), 0, self._on_echo)
        self._bus.subscribe(topics.MASKS.filter(vehicle=name, camera=_NAME), 1, self._on_reply)
        self._bus.subscribe(topics.VEHICLE_STATUS.of(vehicle=name), 1, self._on_own_status)
        may_send = self._may_publish("send frames", topics.FRAMES.of(model=_NAME, vehicle=name, camera=_NAME), b"")
        yield may_send
        try:
            card = self._directory.wait_for_card(_REPLY_S)
        except SkylaneError as error:
            cause, _, _ = str(error).partition(": start one")
            served = sorted({card.name for status in self._statuses.values() for card in status.cards})
            remedy = f"--model {served[0]}" if served else ""
            command = (
                f"skylane edge play SOURCE {remedy}" if served else f"skylane cloud serve --broker {config.broker}"
            )
            yield self._packet(None)
            yield Check.error("workers", f"{cause}; served: {', '.join(served) or 'nothing'}", command)
            return
        yield self._packet(card)
        yield self._workers()
        yield self._vehicle_name()
        if may_send.remedy:
            return
        yield from self._replies_and_clocks(card)
        if with_frame:
            yield self._test_frame(card)

    def _workers(self) -> Check:
        time.sleep(0.1 if self._statuses else _REPLY_S)  # Retained messages come right after the subscription.
        online = {name: each for name, each in self._statuses.items() if each.state is NodeState.ONLINE}
        if not online:
            command = f"skylane cloud serve --broker {self._node.config.broker}"
            return Check.warning("workers", "no worker is online", command)
        shown = (
            f"{name} ({', '.join(f'{card.name} {card.version}' for card in status.cards) or 'no model'})"
            for name, status in sorted(online.items())[:_SHOWN_WORKERS]
        )
        if self._node.role == "worker" and self._node.name in online:
            return Check.ok("workers", f"{self._node.name} is online; {'; '.join(shown)}")
        return Check.ok("workers", f"{len(online)} online: {'; '.join(shown)}")

    def _vehicle_name(self) -> Check:
        if self._own_status is not None and self._own_status.state is NodeState.ONLINE:
            cause = f"a vehicle called {self._node.name} is online: only one process may have that name"
            return Check.warning("vehicle name", cause, "skylane edge play SOURCE --vehicle OTHER")
        return Check.ok("vehicle name", f"{self._node.name} is free")

    def _worker_rights(self) -> Iterator[Check]:
        """Checks a worker's rights by the status of a worker that does not exist, and by a mask for nobody."""
        name = f"{_NAME}-{self._session}"
        status = pack_status(NodeStatus(NodeState.OFFLINE, self._session))
        yield self._may_publish("announce itself", topics.WORKER_STATUS.of(worker=name), status)
        yield self._may_publish("send results", topics.MASKS.of(vehicle=_NAME, camera=self._session), b"")
        ends_s = time.monotonic() + _REPLY_S
        while name not in self._statuses and time.monotonic() < ends_s:
            time.sleep(0.02)
        if name in self._statuses:
            yield Check.ok("right to read statuses", "a canary message came back")
        else:
            yield self._denied("read statuses", f"{topics.WORKER_STATUS.filter()}: a canary message did not come back")

    def _may_publish(self, what: str, topic: str, payload: bytes) -> Check:
        ack = self._publish(topic, payload)
        if ack is None:
            return Check.error(f"right to {what}", "the broker does not acknowledge a canary message", "skylane broker")
        if ack.accepted:
            told = "" if self._bus.supports_shared_subscriptions else " (MQTT 3.1.1 does not tell)"
            return Check.ok(f"right to {what}", f"a canary message was accepted{told}")
        return self._denied(what, f"{topic} ({ack.reason})")

    def _denied(self, what: str, problem: str) -> Check:
        cause = f"the broker's access list forbids {self._node.name} {problem}"
        return Check.error(f"right to {what}", cause, "skylane broker --secured CERTS_FOLDER")

    def _packet(self, card: ModelCard | None) -> Check:
        """Checks the broker's limit against a raw frame, by its announcement and by a message without a receiver."""
        limit = self._bus.max_payload_bytes
        raw = card.height * card.width * _RAW_BYTES if card else 1 << 20
        if limit < raw:
            cause = f"{self._bus.payload_limit_reason} bytes at most: a frame may take {raw}"
        else:
            vehicle = self._node.role == "vehicle"
            names = {"vehicle": self._node.name if vehicle else _NAME, "camera": _NAME}
            topic = topics.FRAMES.of(model=_NAME, **names) if vehicle else topics.MASKS.of(**names)
            ack = self._publish(topic, bytes(raw), timeout_s=1.5)
            if ack is None or ack.accepted or "uthorized" in ack.reason:
                known = "" if ack else " announced, but the broker did not acknowledge a frame in time"
                return Check.ok("largest packet", f"{limit} bytes{known}; a raw frame takes {raw}")
            cause = f"the broker refuses a message of {raw} bytes ({ack.reason})"
        remedy = f"sed -i 's/^\\(message_size_limit\\|max_packet_size\\) .*/\\1 {64 << 20}/' mosquitto.conf"
        return Check.warning("largest packet", cause, remedy)

    def _replies_and_clocks(self, card: ModelCard) -> Iterator[Check]:
        """Sends an expired frame, which a worker refuses at once, and clock probes, and waits for both replies."""
        workers = self._directory.online()
        for number, (worker, _) in enumerate(workers):
            topic = topics.PROBES.of(worker=worker, vehicle=self._node.name)
            probe = Probe(session=self._session, sequence=number, sent_ns=clock.now_ns())
            self._bus.publish(topic, pack_probe(probe), qos=0)
        reply = self._send(self._frame(card, Deadline.after_ms(0), 0), _REPLY_S)
        echoed = self._clocks(workers)
        silent = [name for name, _ in workers if name not in echoed]
        if reply is not None:
            yield Check.ok("right to read results", f"{reply.worker} replied to an expired frame: {reply.status}")
        elif echoed:
            cause = f"{topics.MASKS.filter(vehicle=self._node.name)}: a worker lives, but its reply does not arrive"
            yield self._denied("read results", cause)
        for name, offset_ns in echoed.items():
            if abs(offset_ns) > _LARGE_OFFSET_NS:
                cause = f"the clock of {name} is {offset_ns / 1e9:+.0f} s from this one (latencies are corrected)"
                yield Check.warning("worker's clock", cause, "sudo timedatectl set-ntp true")
        if silent and reply is not None and not echoed:
            yield self._denied("read clock probes", topics.ECHOES.filter(vehicle=self._node.name))
        elif silent:
            cause = f"online but silent: {', '.join(silent[:_SHOWN_WORKERS])}: frozen, or its link is dead"
            yield Check.error("silent workers", cause, f"skylane cloud serve --worker {silent[0]}")

    def _clocks(self, workers: list[tuple[str, str]]) -> dict[str, int]:
        """Returns the offset of the clock of each worker that answered its probe."""
        echoed: dict[str, int] = {}
        ends_s = time.monotonic() + _REPLY_S
        with suppress(queue.Empty):
            while len(echoed) < len(workers):
                worker, echo, at_ns = self._echoes.get(timeout=max(0.0, ends_s - time.monotonic()))
                exchange = Exchange(echo.sent_ns, echo.received_ns, echo.replied_ns, at_ns)
                if exchange.is_consistent:
                    echoed[worker] = exchange.offset_ns
        return echoed

    def _test_frame(self, card: ModelCard) -> Check:
        started_ns = clock.now_ns()
        reply = self._send(self._frame(card, Deadline.NEVER, 1), _FRAME_S)
        return _judged(reply, started_ns, f"skylane cloud serve --model {card.name}")

    def _frame(self, card: ModelCard, deadline: Deadline, sequence: int) -> FrameMessage:
        assert isinstance(self._node.config, EdgeConfig)
        return _made_frame(self._node.config, card, FrameId(self._node.name, _NAME, self._session, sequence), deadline)

    def _send(self, message: FrameMessage, timeout_s: float) -> ResultMessage | None:
        """Publishes a frame; returns its reply, or None if none came in time."""
        topic = topics.FRAMES.of(model=message.model, vehicle=self._node.name, camera=_NAME)
        properties = Properties(
            content_type=FRAME_CONTENT_TYPE,
            response_topic=topics.MASKS.of(vehicle=self._node.name, camera=_NAME),
            correlation=str(message.id).encode(),
        )
        self._bus.publish(topic, pack_frame(message), qos=1, properties=properties)
        ends_s = time.monotonic() + timeout_s
        with suppress(queue.Empty):
            while True:
                reply = self._replies.get(timeout=max(0.0, ends_s - time.monotonic()))
                if reply.id == message.id:
                    return reply
        return None

    def _publish(self, topic: str, payload: bytes, timeout_s: float = _REPLY_S) -> Ack | None:
        acknowledged: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        self._bus.publish(topic, payload, qos=1, acknowledged=acknowledged.put)
        with suppress(queue.Empty):
            return acknowledged.get(timeout=timeout_s)
        return None

    def _on_status(self, delivery: Delivery) -> None:
        self._directory.announced(delivery)
        names = topics.WORKER_STATUS.names_in(delivery.topic)
        if names is not None and len(self._statuses) < _MAX_WORKERS:
            with suppress(MessageError):
                self._statuses[names["worker"]] = unpack_status(delivery.payload)

    def _on_own_status(self, delivery: Delivery) -> None:
        with suppress(MessageError):
            self._own_status = unpack_status(delivery.payload)

    def _on_echo(self, delivery: Delivery) -> None:
        names = topics.ECHOES.names_in(delivery.topic)
        with suppress(MessageError):
            echo = unpack_echo(delivery.payload)
            if names is not None and echo.session == self._session:
                self._echoes.put((names["worker"], echo, delivery.received_ns))

    def _on_reply(self, delivery: Delivery) -> None:
        with suppress(MessageError):
            self._replies.put(unpack_result(delivery.payload))


def _workers_by_address(config: EdgeConfig, *, with_frame: bool) -> Iterator[Check]:
    """Checks the workers of a transport without a broker."""
    for address in config.worker_addresses:
        one = config.model_copy(update={"worker_addresses": (address,), "window": 1})
        remedy = f"skylane cloud serve --{TRANSPORTS[config.transport].endpoint} {address} --model {config.model}"
        frame_id = FrameId(config.vehicle, _NAME, uuid.uuid4().hex[:12], 0)
        try:
            with closing(open_transport(one, frame_id.session)) as transport:
                card = transport.wait_for_card(_TCP_S)
                yield Check.ok(f"worker {address}", f"serves {card.name} {card.version}")
                if with_frame:
                    message, started_ns = _made_frame(one, card, frame_id, Deadline.NEVER), clock.now_ns()
                    yield _judged(_reply_of(transport, message), started_ns, remedy)
        except SkylaneError as error:
            yield Check.error(f"worker {address}", str(error), remedy)


def _reply_of(transport: Transport, message: FrameMessage) -> ResultMessage | None:
    """Sends a frame to a worker; returns its reply, or None if none came."""
    replies = transport.replies
    transport.send(message, transport.pack(message), lambda _: replies.put(None))
    with suppress(queue.Empty):
        reply = replies.get(timeout=_FRAME_S)
        return None if reply is None else reply.read()
    return None


def _made_frame(config: EdgeConfig, card: ModelCard, frame_id: FrameId, deadline: Deadline) -> FrameMessage:
    """Returns a frame with a colour gradient, encoded as those of a run."""
    height, width = _FRAME_SIZE
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([columns * 255 // width, rows * 255 // height, (rows + columns) % 256], axis=-1).astype(np.uint8)
    record = FrameRecord(frame_id, _NAME, 0, 0, 0, 0, times={})
    message = prepare(Frame(pixels, Layout.RGB8, _NAME, 0, 0, 0, 0), record, card, config)
    return replace_fields(message, deadline=deadline)


def _judged(reply: ResultMessage | None, started_ns: int, remedy: str) -> Check:
    """Returns the check of a test frame by its reply."""
    if reply is None:
        return Check.error("test frame", f"no reply within {_FRAME_S:g} s", remedy)
    if reply.status is not Status.ANSWERED:
        return Check.error("test frame", f"{reply.worker}: {reply.status}: {reply.reason}", remedy)
    try:
        task_named(reply.task).decode(reply.data, reply.codec, reply.shape)
    except SkylaneError as error:
        return Check.error("test frame", f"the result of {reply.worker} cannot be read: {error}", remedy)
    taken_ms = (clock.now_ns() - started_ns) / 1e6
    return Check.ok("test frame", f"answered by {reply.worker} in {taken_ms:.0f} ms, there and back")
