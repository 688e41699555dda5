"""Echoes: a worker answers the vehicles' probes at once, so that they learn what its clock says."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from shared import clock, topics
from shared.bus import Bus, Delivery
from shared.fields import MessageError
from shared.probes import Echo, pack_echo, unpack_probe

_BURST = 40.0  # Probes that a vehicle may send at once, and
_RATE_HZ = 10.0  # how many a second it may go on with: a node sends a burst of 16 and then two a second.
_MAX_VEHICLES = 1024


@dataclass(slots=True)
class _Allowance:
    """A token bucket."""

    tokens: float
    at_ns: int

    def take(self, now_ns: int) -> bool:
        self.tokens = min(_BURST, self.tokens + (now_ns - self.at_ns) / 1e9 * _RATE_HZ)
        self.at_ns = now_ns
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Echoes:
    """Answers probes on the network thread: there is nothing to wait for, and a queue would only blur the times."""

    def __init__(self, bus: Bus, *, worker: str, node: str) -> None:
        """`node`: this process's name in stamps."""
        self._bus = bus
        self._worker = worker
        self._node = node
        self._filter = topics.PROBES.filter(worker=worker)
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many probes were `answered`, were `unreadable`, or came `too_often`."""
        return dict(self._counts)

    def open(self) -> None:
        """Answer probes from now on."""
        self._bus.subscribe(self._filter, topics.PROBES.qos, self._received)

    def close(self) -> None:
        """Answer no more."""
        self._bus.unsubscribe(self._filter)

    def _received(self, delivery: Delivery) -> None:
        names = topics.PROBES.names_in(delivery.topic)
        if names is not None:
            self._counts[self._answer(delivery, names["vehicle"])] += 1

    def _answer(self, delivery: Delivery, vehicle: str) -> str:
        """Answer one probe, by the name that the broker let its vehicle write to; what became of it."""
        if not self._allowance(vehicle, delivery.received_ns).take(delivery.received_ns):
            return "too_often"
        try:
            probe = unpack_probe(delivery.payload)
        except MessageError:
            return "unreadable"
        echo = Echo(
            session=probe.session,
            sequence=probe.sequence,
            sent_ns=probe.sent_ns,
            received_ns=delivery.received_ns,
            replied_ns=clock.now_ns(),
            node=self._node,
        )
        self._bus.publish(
            topics.ECHOES.of(vehicle=vehicle, worker=self._worker), pack_echo(echo), qos=topics.ECHOES.qos
        )
        return "answered"

    def _allowance(self, vehicle: str, now_ns: int) -> _Allowance:
        """A vehicle's; the one that was longest silent makes room for a new one."""
        allowance = self._allowances.setdefault(vehicle, _Allowance(_BURST, now_ns))
        self._allowances.move_to_end(vehicle)
        if len(self._allowances) > _MAX_VEHICLES:
            self._allowances.popitem(last=False)
        return allowance
