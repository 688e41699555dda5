"""Checks the path to the workers: broker, certificates, rights, packet sizes, workers, models and a test frame."""

import math
import queue
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_fields

from cloud.config import CloudConfig
from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import prepare
from edge.transports.opening import open_transport
from edge.transports.transport import TRANSPORTS
from ops.doctor.check import ERROR, OK, SKIPPED, WARNING, Check, Checks
from shared import clock
from shared.clock import Deadline, Exchange
from shared.errors import SkylaneError, reason_of
from shared.imaging.frames import Frame, Layout
from shared.messages import topics
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.frame import FRAME_CONTENT_TYPE, FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FrameId
from shared.mqtt.bus import Ack, Delivery, Properties
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address, Certificates
from shared.network.tls import (
    EXPIRED,
    NOT_YET_VALID,
    SOON_DAYS,
    CertificateError,
    ConnectionProblemError,
    ProblemKind,
    accepts_certificate,
    certificate_expiries,
    certificate_holder,
    server_certificate_expiry,
    tls_problem,
)
from shared.task import task_named

_NAME = "doctor"  # The camera of test frames, and the model of messages that no worker should receive.
TIMEOUT_S = 1.5  # Timeout of a connection and of a login, unless the configuration sets one.
_REPLY_S = 1.0  # Timeout of acknowledgements, retained messages, and a worker's reply to an expired frame.
_FRAME_S = 15.0  # Timeout of the reply to the test frame, which may be the first frame of a worker.
_FRAME_SHAPE = (720, 1280, 3)
_LARGE_OFFSET_S = 1.0
_MAX_TOPICS = 1024
_SHOWN = 8  # Maximum number of workers or models in a finding.


@dataclass(frozen=True, slots=True)
class Node:
    """The worker or vehicle whose set-up is checked."""

    config: EdgeConfig | CloudConfig
    name: str

    @property
    def timeout_s(self) -> float:
        """The timeout of a connection, and of a login."""
        config = self.config
        return config.connect_timeout_s if "connect_timeout_s" in config.model_fields_set else TIMEOUT_S

    @property
    def certs(self) -> Path:
        """The folder of the node's certificates."""
        return self.config.certs or Path("certs")

    @property
    def own_certificate(self) -> Path | None:
        """The file of the node's certificate; None if the node has no certificate, or its files cannot be used."""
        with suppress(SkylaneError):  # The first check reports it.
            files = self.config.connection.certificates(self.name)
            return Path(files.certificate) if files and files.certificate else None
        return None

    @property
    def certificate_has_expired(self) -> bool:
        """True if the node's certificate has expired by this machine's clock; False if its expiry cannot be read."""
        now_s = clock.now_ns() / 1e9
        with suppress(SkylaneError):  # The library is missing.
            own = self.own_certificate
            return own is not None and any(each.timestamp() < now_s for each in certificate_expiries(own))
        return False

    @property
    def role(self) -> str:
        """The role of the node, as in its certificate: "vehicle" or "worker"."""
        return "vehicle" if isinstance(self.config, EdgeConfig) else "worker"

    @property
    def authority_folder(self) -> Path | None:
        """The folder of the deployment's authority; None if it is on another machine."""
        given = [self.config.certs, *(file and file.parent for file in (self.config.tls_ca, self.config.tls_cert))]
        return next((folder for folder in given if folder and (folder / "authority" / "ca.key").is_file()), None)

    def by_authority(self, options: str) -> str:
        """Returns a command for the machine of the authority; on any other machine it would make a new authority."""
        folder = self.authority_folder
        return (
            f"skylane broker certs {folder} {options}" if folder else f"ssh HOST skylane broker certs CERTS {options}"
        )

    @property
    def renewal(self) -> str:
        """The command that issues the node's certificate again, and copies it to its place."""
        folder, config = self.authority_folder, self.config
        steps = [self.by_authority(f"--{self.role} {self.name} --again")]
        source = folder or "HOST:CERTS"
        given = {"crt": config.tls_cert, "key": config.tls_key}
        for suffix, file in given.items():
            target = file or (config.certs or folder or Path("certs")) / f"{self.name}.{suffix}"
            if folder is None or target.absolute() != (folder / f"{self.name}.{suffix}").absolute():
                steps.append(f"{'cp' if folder else 'scp'} {source}/{self.name}.{suffix} {target}")
        if config.certs is None and config.tls_cert is None:
            steps.append(f"export SKYLANE_CERTS={folder or 'certs'}")
        return " && ".join(steps)

    @property
    def authority(self) -> Path:
        """The certificate of the broker's authority."""
        return self.config.tls_ca or self.certs / "ca.crt"

    def fetch_authority(self, address: Address) -> str:
        """Returns the command that copies the certificate of the broker's authority."""
        return f"scp {address.host}:{self.certs / 'ca.crt'} {self.authority}"

    def mended(self, error: CertificateError, address: Address) -> str:
        """Returns the command that replaces the unusable certificate: that of the authority, or that of the node."""
        return self.fetch_authority(address) if error.is_authority else self.renewal


def groups(node: Node, *, with_frame: bool) -> dict[str, Checks]:
    """Returns the groups of checks of the path to the workers, by name; a group ends at the first failed step."""
    config = node.config
    if isinstance(config, CloudConfig) and config.no_broker:
        return {"broker": lambda: iter([Check("broker", SKIPPED, "this worker has none")])}
    if isinstance(config, EdgeConfig) and TRANSPORTS[config.transport].needs_addresses:
        workers = config.worker_addresses
        return {f"worker {each}": partial(_worker_at, each, config, with_frame=with_frame) for each in workers}
    return {"broker": partial(_by_broker, node, with_frame=with_frame)}


def _by_broker(node: Node, *, with_frame: bool) -> Iterator[Check]:
    config = node.config
    try:
        address = Address.parse(config.broker)
        certificates = config.connection.certificates(node.name)
    except CertificateError as error:
        yield Check("broker", ERROR, str(error), node.mended(error, address))
        return
    except SkylaneError as error:
        remedy = "unset SKYLANE_BROKER_PASSWORD_FILE; export SKYLANE_BROKER_PASSWORD=PASSWORD"
        yield Check("broker", ERROR, str(error), remedy)
        return
    for step in (_reach, _handshake):
        for check in step(node, address, certificates):
            yield check
            if check.severity is ERROR:
                return
    try:
        options = replace(config.connection, connect_timeout_s=node.timeout_s)
        bus = options.open(f"skylane-{_NAME}-{uuid.uuid4().hex[:12]}", None, name=node.name)
    except SkylaneError as error:
        yield _refused_login(node, address, error)
        return
    with bus:
        conversation = _Conversation(node, bus)
        yield Check("login", OK, f"accepted as {address.username or conversation.holder or node.name}")
        if bus.supports_shared_subscriptions:
            yield Check("MQTT version", OK, "5")
        else:
            cause = "the broker knows 3.1.1 only: one worker for each model, and no reasons for refused messages"
            yield Check("MQTT version", WARNING, cause, f"skylane broker --kind mosquitto --port {address.port}")
        yield from conversation.checks(with_frame=with_frame)
        if bus.lacking:
            yield Check("broker features", ERROR, f"{address} has {bus.lacking}, which Skylane requires", _ALLOW_ALL)


def _reach(node: Node, address: Address, _: Certificates | None) -> Iterator[Check]:
    try:
        socket.create_connection((address.host, address.port), timeout=node.timeout_s).close()
    except (OSError, ValueError) as error:
        has_name = not isinstance(error, socket.gaierror)
        scheme = "mqtts" if address.tls else "mqtt"
        remedy = f"skylane broker --port {address.port}" if has_name else f"export SKYLANE_BROKER={scheme}://HOST:PORT"
        yield Check("broker", ERROR, f"no broker at {address}: {reason_of(error)}", remedy)
    else:
        yield Check("broker", OK, f"{address} accepts connections")


_ALLOW_ALL = "sed -ri '/^(retain_available|max_qos|max_packet_size) /d' mosquitto.conf"
_SET_CLOCK = "sudo timedatectl set-ntp true"
_MENDED_BY_RENEWAL = {EXPIRED, 26, 62, 64}  # Codes of X509_V_ERR_* that a new certificate of the broker solves.


def _handshake(node: Node, address: Address, certificates: Certificates | None) -> Iterator[Check]:
    """Checks the broker's certificate (chain, name and expiry), and the expiry of the node's certificate."""
    if not address.tls:
        return
    again = node.by_authority(f"--broker {address.host} --again")
    own = node.own_certificate
    is_ahead = node.certificate_has_expired and _accepts_expired(address, certificates)
    try:
        expires_s = server_certificate_expiry(address, certificates, node.timeout_s)
        yield _expiry("TLS", "the broker's certificate", expires_s, again)
    except ssl.SSLCertVerificationError as error:
        problem = tls_problem(error, address, certificates)
        assert problem is not None
        cause = problem.cause
        if error.verify_code == NOT_YET_VALID or (error.verify_code == EXPIRED and is_ahead):
            yield Check("TLS", ERROR, f"{cause}: that clock is wrong", _SET_CLOCK)
            return
        is_renewed = error.verify_code in _MENDED_BY_RENEWAL
        yield Check("TLS", ERROR, cause, again if is_renewed else node.fetch_authority(address))
    except OSError as error:
        cause = f"{address} does not speak TLS on that port ({reason_of(error)})"
        yield Check("TLS", ERROR, cause, f"export SKYLANE_BROKER=mqtt://{address.host}:{address.port}")
    except CertificateError as error:
        yield Check("TLS", ERROR, str(error), node.mended(error, address))
    if own is not None:
        with suppress(SkylaneError):  # The library is missing; the broker checks it at the login.
            for expires in certificate_expiries(own):
                check = _expiry("own certificate", str(own), expires.timestamp(), node.renewal)
                if is_ahead and check.severity is ERROR:
                    cause = (
                        f"{check.finding} by the clock of this machine, but the broker accepts it: that clock is wrong"
                    )
                    check = replace(check, finding=cause, remedy=_SET_CLOCK)
                yield check
    with suppress(SkylaneError):
        lists = node.certs / "crl.pem"
        for expires in certificate_expiries(lists, is_revocation_list=True):
            check = _expiry("revocation list", str(lists), expires.timestamp(), node.by_authority("--renew-list"))
            yield replace(check, severity=WARNING) if check.severity is ERROR else check  # The broker has its own copy.


def _accepts_expired(address: Address, certificates: Certificates | None) -> bool:
    """Returns whether the broker accepts the node's certificate, which has expired by the clock of this machine."""
    if certificates is None:
        return False
    without = replace(certificates, certificate=None, key=None)
    with suppress(SkylaneError):
        return accepts_certificate(address, certificates, TIMEOUT_S) and not accepts_certificate(
            address, without, TIMEOUT_S
        )  # A broker that asks for no certificate accepts any.
    return False


def _expiry(name: str, what: str, expires_s: float, remedy: str) -> Check:
    days = int((expires_s - clock.now_ns() / 1e9) // 86_400)
    if days < 0:
        return Check(name, ERROR, f"{what} expired {-days} days ago", remedy)
    if days < SOON_DAYS:
        return Check(name, WARNING, f"{what} expires in {days} days", remedy)
    return Check(name, OK, f"{what} is valid for {days} days")


def _refused_login(node: Node, address: Address, error: SkylaneError) -> Check:
    cause, remedy = str(error), node.renewal  # The remedy for a certificate that cannot be used any more.
    if isinstance(error, ConnectionProblemError):
        cause, remedy = error.cause, _login_remedy(node, address, error.kind)
        if error.kind is ProblemKind.NO_REPLY:
            cause = f"broker {address} accepts connections but does not answer: it hangs, or is no MQTT broker"
        elif error.kind is ProblemKind.EXPIRED_BY_BROKER and not node.certificate_has_expired:
            cause += (
                ", by the broker's clock: the certificate is valid here, so the broker's revocation list has expired"
            )
            remedy = node.by_authority("--renew-list")
    return Check("login", ERROR, cause, remedy)


def _login_remedy(node: Node, address: Address, kind: ProblemKind) -> str:
    match kind:
        case ProblemKind.LACKS_FEATURE:
            return _ALLOW_ALL
        case ProblemKind.NEEDS_TLS:
            return f"export SKYLANE_BROKER={replace(address, tls=True)}"
        case ProblemKind.OWN_CERTIFICATE | ProblemKind.EXPIRED_BY_BROKER | ProblemKind.UNTRUSTED:
            return node.renewal
        case ProblemKind.LOGIN if address.username:
            return "export SKYLANE_BROKER_PASSWORD=PASSWORD"
        case ProblemKind.LOGIN:
            return f"export SKYLANE_BROKER={str(address).replace('://', '://USER@')}"
        case _:
            return f"skylane broker --port {address.port}"


class _Conversation:
    """Exchanges messages with the broker and the workers in the node's name, without announcing the node."""

    def __init__(self, node: Node, bus: MqttBus) -> None:
        self._node = node
        self._config = node.config
        self._name = node.name
        self._bus = bus
        self._session = uuid.uuid4().hex[:12]
        own = node.own_certificate
        self.holder = certificate_holder(own) if own else ""  # The role and name in the certificate.
        self._unreadable = ""  # The worker whose status cannot be read, and why.
        self._latest: dict[str, tuple[Any, int]] = {}  # The latest message of each topic, and its arrival.

    def checks(self, *, with_frame: bool) -> Iterator[Check]:
        """Checks the node's rights to publish and subscribe, then the workers."""
        self._listen(topics.WORKER_STATUS.filter(), unpack_status)
        config, name = self._config, self._name
        if isinstance(config, CloudConfig):
            yield from self._rights_of_worker()
            self._wait(self._online)
            yield self._workers(None)
            return
        own = topics.VEHICLE_STATUS.of(vehicle=name)
        self._listen(own, unpack_status)
        self._listen(topics.ECHOES.filter(vehicle=name), self._unpack_own_echo)
        self._listen(topics.MASKS.filter(vehicle=name, camera=_NAME), unpack_result)
        topic = topics.FRAMES.of(model=_NAME, vehicle=name, camera=_NAME)
        may_send = self._right("send frames", topic, b"")
        yield may_send
        self._wait(lambda: self._card(config))
        card = self._card(config)
        if may_send.severity is OK:
            yield self._packet(topic, card)
        yield self._workers(card)
        if card is None:
            return
        if own in self._latest and self._latest[own][0].state is NodeState.ONLINE:
            cause = f"a vehicle called {name} is online: only one process may have that name"
            yield Check("vehicle name", WARNING, cause, "skylane edge play SOURCE --vehicle OTHER")
        if may_send.severity is OK:
            yield from self._replies_and_clocks(config, card)
            if with_frame:
                yield _judged(*self._ask(config, card, 1, Deadline.NEVER, _FRAME_S), card.name)

    def _rights_of_worker(self) -> Iterator[Check]:
        """Checks a worker's rights with the status of a worker and a result for a vehicle that do not exist."""
        canary = topics.WORKER_STATUS.of(worker=f"{_NAME}-{self._session}")
        may_announce = self._right("announce itself", canary, pack_status(NodeStatus(NodeState.OFFLINE, self._session)))
        yield may_announce
        if may_announce.severity is ERROR:
            return
        masks = topics.MASKS.of(vehicle=_NAME, camera=_NAME)
        may_reply = self._right("send results", masks, b"")
        yield may_reply
        if may_reply.severity is OK:
            yield self._packet(masks, None)
        if not self._wait(lambda: canary in self._latest):
            yield self._denied("read statuses", f"{topics.WORKER_STATUS.filter()}: a canary message did not come back")

    def _right(self, what: str, topic: str, payload: bytes) -> Check:
        ack = self._publish(topic, payload)
        if ack is None:
            return Check(f"right to {what}", ERROR, "the broker does not acknowledge a message", "skylane broker")
        if not ack.accepted:
            return self._denied(what, f"{topic} ({ack.reason})")
        is_told = self._bus.supports_shared_subscriptions
        shown = "a canary message was accepted" if is_told else "MQTT 3.1.1 does not tell"
        return Check(f"right to {what}", OK, shown)

    def _denied(self, what: str, problem: str) -> Check:
        node, name = self._node, f"right to {what}"
        if self.holder and self.holder not in (node.name, node.role, f"{node.role} {node.name}"):
            held = self.holder.split()
            cause = f"the certificate is that of {self.holder}, not of {node.role} {node.name}: {problem}"
            if held[0] == node.role == "vehicle":
                return Check(name, ERROR, cause, f"skylane edge play SOURCE --vehicle {held[-1]}")
            free = f"{node.role}-{node.name}" if held[-1] == node.name else node.name
            return Check(name, ERROR, cause, node.by_authority(f"--{node.role} {free}"))
        cause = f"the broker's access list forbids {self._name} {problem}"
        return Check(name, ERROR, cause, "skylane broker --secured CERTS_FOLDER")

    def _packet(self, topic: str, card: ModelCard | None) -> Check:
        """Compares the broker's limit with a raw frame: the announced limit, then a message without a receiver."""
        limit, raw = self._bus.max_payload_bytes, 3 * card.height * card.width if card else 1 << 20
        ack = self._publish(topic, bytes(raw)) if limit >= raw else Ack(accepted=False, no_subscriber=False)
        if ack is None or ack.accepted:
            slow = "" if ack else ", but it was not acknowledged in time"
            return Check("largest packet", OK, f"{limit} bytes; a raw frame takes {raw}{slow}")
        reason = ack.reason or f"{self._bus.payload_limit_reason} bytes"
        remedy = rf"sed -ri 's/^(message_size_limit|max_packet_size) .*/\1 {64 << 20}/' mosquitto.conf"
        return Check("largest packet", WARNING, f"the broker refuses a raw frame of {raw} bytes: {reason}", remedy)

    def _online(self) -> dict[str, NodeStatus]:
        named = ((topics.WORKER_STATUS.names_in(topic), got[0]) for topic, got in list(self._latest.items()))
        return {names["worker"]: status for names, status in named if names and status.state is NodeState.ONLINE}

    def _card(self, config: EdgeConfig) -> ModelCard | None:
        cards = (card for status in self._online().values() for card in status.cards if card.name == config.model)
        return next((card for card in cards if config.model_version in (None, card.version)), None)

    def _workers(self, card: ModelCard | None) -> Check:
        """Lists the workers; a vehicle needs one of them with the `card` of its model."""
        config, online = self._config, self._online()
        if not online:
            severity = ERROR if isinstance(config, EdgeConfig) else WARNING
            if self._unreadable:
                cause = f"a worker announces itself in a form of another release, {self._unreadable}"
                return Check("workers", severity, cause, "pip install --upgrade skylane")
            return Check("workers", severity, "no worker is online", f"skylane cloud serve --broker {config.broker}")
        if isinstance(config, EdgeConfig) and card is None:
            served = sorted({model_card.name for status in online.values() for model_card in status.cards})
            version = f" {config.model_version}" if config.model_version else ""
            cause = f"no worker serves {config.model}{version}; served: {', '.join(served[:_SHOWN]) or 'nothing'}"
            other = f"skylane edge play SOURCE --model {served[0]}" if served else ""
            return Check("workers", ERROR, cause, other or f"skylane cloud serve --model {config.model}")
        shown = []
        for name in sorted(online)[:_SHOWN]:
            models = ", ".join(f"{model_card.name} {model_card.version}" for model_card in online[name].cards)
            shown.append(f"{name} ({models or 'no model'})")
        return Check("workers", OK, f"{len(online)} online: {'; '.join(shown)}")

    def _replies_and_clocks(self, config: EdgeConfig, card: ModelCard) -> Iterator[Check]:
        """Sends clock probes, and an expired frame, which a worker refuses at once; waits for the replies."""
        vehicle = self._name
        workers = [name for name, status in self._online().items() if card in status.cards]
        for worker in workers:
            probe = pack_probe(Probe(session=self._session, sequence=0, sent_ns=clock.now_ns()))
            self._bus.publish(topics.PROBES.of(worker=worker, vehicle=vehicle), probe, qos=0)
        reply, _ = self._ask(config, card, 0, Deadline.after_ms(0), _REPLY_S)
        echo_topics = {worker: topics.ECHOES.of(vehicle=vehicle, worker=worker) for worker in workers}
        echo_wait_s = _REPLY_S if reply is not None else 0.0  # Without a reply, they have had that time already.
        self._wait(lambda: all(topic in self._latest for topic in echo_topics.values()), echo_wait_s)
        echoes = {name: self._latest[topic] for name, topic in echo_topics.items() if topic in self._latest}
        silent = [name for name in workers if name not in echoes]
        if reply is not None:
            yield Check("right to read results", OK, f"{reply.worker} replied to an expired frame")
        elif echoes:
            problem = f"{topics.MASKS.filter(vehicle=vehicle)}: a worker lives, but its reply does not arrive"
            yield self._denied("read results", problem)
        if silent and reply is not None and not echoes:
            yield self._denied("read clock probes", topics.ECHOES.filter(vehicle=vehicle))
        elif silent:
            cause = f"online, but silent: {', '.join(silent[:_SHOWN])}: frozen, or the link is dead"
            yield Check("silent workers", ERROR, cause, f"skylane cloud serve --worker {silent[0]}")
        for name, (echo, at_ns) in echoes.items():
            offset_s = Exchange(echo.sent_ns, echo.received_ns, echo.replied_ns, at_ns).offset_ns / 1e9
            if abs(offset_s) > _LARGE_OFFSET_S:
                cause = f"the clock of {name} is {offset_s:+.0f} s from this one (latencies are right all the same)"
                yield Check("worker's clock", WARNING, cause, _SET_CLOCK)

    def _ask(
        self, config: EdgeConfig, card: ModelCard, sequence: int, deadline: Deadline, timeout_s: float
    ) -> tuple[ResultMessage | None, int]:
        """Publishes a frame; returns its reply, or None if none arrived in time, and the response time in ns."""
        message = _made_frame(config, card, FrameId(self._name, _NAME, self._session, sequence), deadline)
        masks = topics.MASKS.of(vehicle=self._name, camera=_NAME)
        properties = Properties(FRAME_CONTENT_TYPE, response_topic=masks, correlation=str(message.id).encode())
        frames, sent_ns = topics.FRAMES.of(model=card.name, vehicle=self._name, camera=_NAME), clock.now_ns()
        self._bus.publish(frames, pack_frame(message), qos=1, properties=properties)
        has_reply = self._wait(lambda: masks in self._latest and self._latest[masks][0].id == message.id, timeout_s)
        return (self._latest[masks][0], self._latest[masks][1] - sent_ns) if has_reply else (None, 0)

    def _publish(self, topic: str, payload: bytes) -> Ack | None:
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        self._bus.publish(topic, payload, qos=1, acknowledged=acks.put)
        with suppress(queue.Empty):
            return acks.get(timeout=_REPLY_S)
        return None

    def _listen(self, topic_filter: str, unpack: Callable[[Any], Any]) -> None:
        def received(delivery: Delivery) -> None:
            try:
                message = unpack(delivery.payload)
            except MessageError as error:
                if names := topics.WORKER_STATUS.names_in(delivery.topic):
                    self._unreadable = f"{names['worker']}: {error}"
            else:
                if delivery.topic in self._latest or len(self._latest) < _MAX_TOPICS:
                    self._latest[delivery.topic] = message, delivery.received_ns

        self._bus.subscribe(topic_filter, 1, received)

    def _unpack_own_echo(self, payload: Any) -> Any:
        echo = unpack_echo(payload)
        if echo.session != self._session:
            raise MessageError("an echo for the vehicle itself")
        return echo

    @staticmethod
    def _wait(condition: Callable[[], object], timeout_s: float = _REPLY_S) -> bool:
        ends_s = time.monotonic() + timeout_s
        while not (is_true := bool(condition())) and time.monotonic() < ends_s:
            time.sleep(0.01)
        return is_true


def _worker_at(address: str, config: EdgeConfig, *, with_frame: bool) -> Iterator[Check]:
    """Checks a worker that a vehicle reaches without a broker."""
    frame_id = FrameId(config.vehicle, _NAME, uuid.uuid4().hex[:12], 0)
    one = config.model_copy(update={"worker_addresses": (address,), "window": 1})
    try:
        with closing(open_transport(one, frame_id.session)) as transport:
            card = transport.wait_for_card(TIMEOUT_S)
            yield Check(f"worker {address}", OK, f"serves {card.name} {card.version}")
            if with_frame:
                message, sent_ns, reply = _made_frame(one, card, frame_id, Deadline.NEVER), clock.now_ns(), None
                transport.send(message, transport.pack(message), lambda _: transport.replies.put(None))
                with suppress(queue.Empty):
                    reply = transport.replies.get(timeout=_FRAME_S)
                yield _judged(reply.read() if reply else None, clock.now_ns() - sent_ns, card.name)
    except SkylaneError as error:
        remedy = f"skylane cloud serve --{TRANSPORTS[config.transport].endpoint} {address} --model {config.model}"
        yield Check(f"worker {address}", ERROR, str(error), remedy)


def _made_frame(config: EdgeConfig, card: ModelCard, frame_id: FrameId, deadline: Deadline) -> FrameMessage:
    """Returns a frame with a gradient, encoded like the frames of a run."""
    pixels = np.linspace(0, 255, math.prod(_FRAME_SHAPE)).astype(np.uint8).reshape(_FRAME_SHAPE)
    record = FrameRecord.of(frame_id, _NAME)
    frame = Frame(pixels, Layout.RGB8, _NAME, 0, 0, 0, 0)
    return replace_fields(prepare(frame, record, card, config), deadline=deadline)


def _judged(reply: ResultMessage | None, taken_ns: int, model: str) -> Check:
    """Returns the check of a test frame from its reply."""
    if reply is None:
        cause = f"no reply within {_FRAME_S:g} s"
    elif reply.status is not Status.ANSWERED:
        cause = f"{reply.worker}: {reply.status}: {reply.reason}"
    else:
        try:
            task_named(reply.task).decode(reply.data, reply.codec, reply.shape)
            return Check("test frame", OK, f"answered by {reply.worker} in {taken_ns / 1e6:.0f} ms, there and back")
        except SkylaneError as error:
            cause = f"the result of {reply.worker} cannot be read: {error}"
    return Check("test frame", ERROR, cause, f"skylane cloud serve --model {model}")
