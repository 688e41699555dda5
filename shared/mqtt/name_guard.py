"""Ensures that only one process runs under a node's name, and finds the workers that are online.

A node subscribes to its own status topic. It answers another process's status there by publishing its own status again,
so that the broker retains the status of a live process even if the will of a dead predecessor arrives late. Of two live
processes, the one that has been announcing longer stays and the other ends.

A process counts as live only if its status names this session as its `rival`, since messages of a killed predecessor
may still arrive after its successor has started.

The acknowledgement of the first status shows whether the broker's access list allows the name: brokers accept the
connection and grant the subscription in any case.
"""

import secrets
import threading
from collections.abc import Callable

from shared import clock
from shared.errors import SkylaneError
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import MAX_AGE_MS, NodeState, NodeStatus, unpack_status
from shared.messages.topics import VEHICLE_STATUS, WORKER_STATUS, TopicKind
from shared.mqtt.bus import Ack, Bus, Delivery

_AGE_TOLERANCE_MS = 1000  # Ages this close count as equal; grows with each disagreement,
_MAX_AGE_TOLERANCE_MS = 60_000  # up to this.
_SECRET_BYTES = 8


class NameTakenError(SkylaneError):
    """Another process runs under this node's name."""


class IdentityError(SkylaneError):
    """The broker does not allow a node to use its name."""


def client_id(role: str, name: str) -> str:
    """Returns an MQTT client identifier with a random part.

    A client that connects with another's identifier disconnects it. The session identifier would be guessable, as nodes
    publish theirs.
    """
    return f"skylane-{role}-{name}-{secrets.token_hex(_SECRET_BYTES)}"


def online_workers(bus: Bus, is_sought: Callable[[str, NodeStatus], bool], timeout_s: float) -> dict[str, NodeStatus]:
    """Returns the retained statuses of the workers that are online, by name; ends early once one `is_sought`."""
    online: dict[str, NodeStatus] = {}
    found = threading.Event()

    def announced(delivery: Delivery) -> None:
        names = WORKER_STATUS.names_in(delivery.topic)
        try:
            status = unpack_status(delivery.payload)
        except MessageError:
            return
        if names is not None and status.state is NodeState.ONLINE:
            online[names["worker"]] = status
            if is_sought(names["worker"], status):
                found.set()

    bus.subscribe(WORKER_STATUS.filter(), WORKER_STATUS.qos, announced)
    found.wait(timeout_s)
    bus.unsubscribe(WORKER_STATUS.filter())
    return dict(online)


class NameGuard:
    """One node's claim to its name. Thread-safe."""

    def __init__(
        self,
        role: str,
        name: str,
        session: str,
        *,
        announce: Callable[[], None],
        give_up: Callable[[SkylaneError], None],
        since_ns: int | None = None,
    ) -> None:
        """Creates a claim that is not active until `open`; `role` is "vehicle" or "worker".

        `announce` publishes the node's status again. `give_up` is called once with the reason why the node must end.
        `since_ns` is the time since when the process has been announcing itself; None: now.
        """
        self._role = role
        self._name = name
        self._session = session
        self._announce = announce
        self._give_up = give_up
        self._lock = threading.Lock()
        self._since_ns = clock.now_ns() if since_ns is None else since_ns
        self._is_acknowledged = False
        self._is_over = False
        self.is_lost = False  # The name belongs to another process, so this one must not publish under it.
        self.rival: str | None = None  # Session of the process that last used this name; every status must contain it.
        self._rounds = 0  # Number of its answers.

    @property
    def age_ms(self) -> int:
        """Time since this process started to announce itself."""
        return min(MAX_AGE_MS, max(0, clock.now_ns() - self._since_ns) // 10**6)

    def open(self, bus: Bus) -> None:
        """Subscribes to the node's status topic; call it before the first status is published."""
        kind: TopicKind = WORKER_STATUS if self._role == "worker" else VEHICLE_STATUS
        bus.subscribe(kind.of(**{self._role: self._name}), kind.qos, self.received)

    def close(self) -> None:
        """Stops defending the name."""
        self._is_over = True

    def acknowledged(self, ack: Ack) -> None:
        """Handles the acknowledgement of a status; the first one shows whether the broker allows the name."""
        with self._lock:
            first, self._is_acknowledged = not self._is_acknowledged, True
        if first and not ack.accepted:
            self._end(
                IdentityError(
                    f"the broker does not let this process publish as {self._role} {self._name!r}"
                    f"{f' ({ack.reason})' if ack.reason else ''}: connect with the certificate or user of that name, "
                    f"or give the name that they are for with --{self._role}"
                )
            )

    def received(self, delivery: Delivery) -> None:
        """Handles a status published under this node's name, on the network thread."""
        if delivery.retained or self._is_over:  # The node's own status replaces a retained one.
            return
        try:
            status = unpack_status(delivery.payload)
        except MessageError:
            return
        is_online = status.state is NodeState.ONLINE
        if status.session == self._session:
            if status.state is NodeState.OFFLINE:  # The will of an earlier connection of this process.
                self._announce()
            return
        if self._is_answered_by(status) and is_online and self._yields_to(status.session, status.age_ms):
            self._end(
                NameTakenError(
                    f"{self._role} {self._name!r} is already running (session {status.session}, for "
                    f"{status.age_ms / 1e3:.0f} s): stop it, or choose another --{self._role}"
                )
            )
        else:
            self._announce()

    def _is_answered_by(self, status: NodeStatus) -> bool:
        """Returns whether the other process has received this one's status, and so runs at the same time."""
        with self._lock:
            if status.session != self.rival:
                self.rival, self._rounds = status.session, 0
        return status.rival == self._session

    def _yields_to(self, session: str, age_ms: int) -> bool:
        """Returns whether the other process stays.

        Two processes that started within a message's travel time both consider themselves older. The tolerance grows
        with each round until both compare their sessions instead.
        """
        with self._lock:
            self._rounds += 1
            tolerance_ms = min(_MAX_AGE_TOLERANCE_MS, _AGE_TOLERANCE_MS * (self._rounds - 1))
        older_by_ms = self.age_ms - age_ms
        if abs(older_by_ms) <= tolerance_ms:
            return session < self._session
        return older_by_ms < 0

    def _end(self, error: SkylaneError) -> None:
        with self._lock:
            if self.is_lost:
                return
            self.is_lost = self._is_over = True
        self._give_up(error)
