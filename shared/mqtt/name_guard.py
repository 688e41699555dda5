"""A node's claim to its name: no two processes run under one, and none runs under another's.

A node listens to its own status topic. Whatever another process says there is answered with the node's own status, so
that the last word the broker keeps is of the one that lives, be the other a dead predecessor whose will came late. Of
two that live the one that has been announcing for longer stays, and the other gives up.

That a process lives only its answer tells, which names the session that it answers. What a predecessor said before it
died may come after its successor's first word: a system sends on what a killed process left, and links hold things up.

Whether the broker lets the node speak by its name at all, its acknowledgement of the first status tells: a broker grants
subscriptions and takes connections that its access list then leaves without effect.
"""

import secrets
import threading
from collections.abc import Callable

from shared import clock
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.messages.node_status import MAX_AGE_MS, NodeState, NodeStatus, unpack_status
from shared.messages.topics import VEHICLE_STATUS, WORKER_STATUS, TopicKind
from shared.mqtt.bus import Ack, Bus, Delivery

_LEEWAY_MS = 1000  # What ages may differ by and still be called equal, for each time that two did not agree on it,
_MOST_LEEWAY_MS = 60_000  # up to so much.
_SECRET_BYTES = 8


class NameTakenError(SkylaneError):
    """Another process runs under this node's name."""


class IdentityError(SkylaneError):
    """The broker does not let a node speak by its name."""


def client_id(role: str, name: str) -> str:
    """What a node calls itself to the broker, with a part that nobody can guess.

    Whoever connects with the id of another throws that one out. A session would not do: nodes announce theirs.
    """
    return f"skylane-{role}-{name}-{secrets.token_hex(_SECRET_BYTES)}"


class NameGuard:
    """One node's claim. `role` is "vehicle" or "worker". All methods may be called from any thread."""

    def __init__(
        self,
        role: str,
        name: str,
        session: str,
        *,
        announce: Callable[[], None],
        give_up: Callable[[SkylaneError], None],
    ) -> None:
        """`announce` tells the node's status again. `give_up` is told once why the node must end."""
        self._role = role
        self._name = name
        self._session = session
        self._announce = announce
        self._give_up = give_up
        self._lock = threading.Lock()
        self._since_ns = clock.now_ns()
        self._is_vouched_for = False
        self._is_over = False
        self._is_lost = False
        self._rival: str | None = None  # The session of the process that last spoke by our name, and
        self._rounds = 0  # how often it answered us.

    @property
    def age_ms(self) -> int:
        """How long this process has been announcing."""
        return min(MAX_AGE_MS, max(0, clock.now_ns() - self._since_ns) // 10**6)

    @property
    def rival(self) -> str | None:
        """The session of the process that last spoke by this name, to be told with every status."""
        return self._rival

    @property
    def is_lost(self) -> bool:
        """Whether the name is another's: nothing more is to be said by it."""
        return self._is_lost

    def open(self, bus: Bus) -> None:
        """Listen for others of this name; before the first status is published."""
        kind: TopicKind = WORKER_STATUS if self._role == "worker" else VEHICLE_STATUS
        bus.subscribe(kind.of(**{self._role: self._name}), kind.qos, self.heard)

    def close(self) -> None:
        """The node leaves, and answers no more for its name."""
        self._is_over = True

    def acknowledged(self, ack: Ack) -> None:
        """The broker's word to a status of ours; the first one tells whether it lets us speak by this name."""
        with self._lock:
            first, self._is_vouched_for = not self._is_vouched_for, True
        if first and not ack.accepted:
            self._end(
                IdentityError(
                    f"the broker does not let this process speak as {self._role} {self._name!r}"
                    f"{f' ({ack.reason})' if ack.reason else ''}: connect with the certificate or user of that name, "
                    f"or give the name that they are for with --{self._role}"
                )
            )

    def heard(self, delivery: Delivery) -> None:
        """A status under our name came in. Runs on the network thread."""
        if delivery.retained or self._is_over:  # What was said before we spoke is settled by our speaking.
            return
        try:
            status = unpack_status(delivery.payload)
        except MessageError:
            return
        is_online = status.state is NodeState.ONLINE
        if status.session == self._session:
            if status.state is NodeState.OFFLINE:  # A will of our own, of a connection that ended after the next began.
                self._announce()
            return
        if self._is_answered_by(status) and is_online and self._gives_way_to(status.session, status.age_ms):
            self._end(
                NameTakenError(
                    f"{self._role} {self._name!r} runs already (session {status.session}, for "
                    f"{status.age_ms / 1e3:.0f} s): stop it, or choose another --{self._role}"
                )
            )
        else:
            self._announce()

    def _is_answered_by(self, status: NodeStatus) -> bool:
        """Whether another process has heard us: it lived when we did."""
        with self._lock:
            if status.session != self._rival:
                self._rival, self._rounds = status.session, 0
        return status.rival == self._session

    def _gives_way_to(self, session: str, age_ms: int) -> bool:
        """Whether a rival stays. Two that began within the time that a message takes both find themselves the older.

        Each time they disagree the ages that count as equal get further apart, until both let their sessions decide.
        """
        with self._lock:
            self._rounds += 1
            leeway_ms = min(_MOST_LEEWAY_MS, _LEEWAY_MS * (self._rounds - 1))
        older_by_ms = self.age_ms - age_ms
        if abs(older_by_ms) <= leeway_ms:
            return session < self._session
        return older_by_ms < 0

    def _end(self, error: SkylaneError) -> None:
        with self._lock:
            if self._is_lost:
                return
            self._is_lost = self._is_over = True
        self._give_up(error)
