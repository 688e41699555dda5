"""Echoes: a worker answers the vehicles' probes at once, so that they learn what its clock says."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from cloud.serving.request_errors import RequestErrors
from shared import clock
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.messages import topics
from shared.messages.clock_probes import Echo, pack_echo, unpack_probe
from shared.mqtt.bus import Bus, Delivery
from shared.runtime.threads import Counts

_BURST = 40.0  # Probes that a vehicle may send at once, and
_RATE_HZ = 10.0  # how many a second it may go on with: a node sends a burst of 16 and then two a second.
_MAX_VEHICLES = 1024


class ProbeRefusal(StrEnum):
    """Why a probe gets no echo."""

    TOO_OFTEN = "too_often"
    UNREADABLE = "unreadable"


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

    def __init__(self, worker: str, node: str) -> None:
        """`node`: this process's name in stamps."""
        self._worker = worker
        self._node = node
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._lock = threading.Lock()  # Probes come through several doors.
        self._refused = Counts()

    @property
    def refused(self) -> Mapping[str, int]:
        """How many probes got no echo: they were `unreadable`, came `too_often` or by a `topic` that names no vehicle."""
        return self._refused.by_name()

    def open(self, bus: Bus, errors: RequestErrors) -> None:
        """Answers probes that arrive over `bus` as long as it is open. `errors` records what fails unexpectedly."""
        handler = errors.guarded("probe", partial(self._received, bus))
        bus.subscribe(topics.PROBES.filter(worker=self._worker), topics.PROBES.qos, handler)

    def echo(self, vehicle: str, payload: Buffer, received_ns: int) -> bytes | ProbeRefusal:
        """The packed echo of a vehicle's packed probe, or why it gets none, which is counted."""
        if not self._is_allowed(vehicle, received_ns):
            self._refused.add(ProbeRefusal.TOO_OFTEN)
            return ProbeRefusal.TOO_OFTEN
        try:
            probe = unpack_probe(payload)
        except MessageError:
            self._refused.add(ProbeRefusal.UNREADABLE)
            return ProbeRefusal.UNREADABLE
        return pack_echo(
            Echo(
                session=probe.session,
                sequence=probe.sequence,
                sent_ns=probe.sent_ns,
                received_ns=received_ns,
                replied_ns=clock.now_ns(),
                node=self._node,
            )
        )

    def _received(self, bus: Bus, delivery: Delivery) -> None:
        names = topics.PROBES.names_in(delivery.topic)
        if names is None:
            self._refused.add("topic")
            return
        vehicle = names["vehicle"]  # The broker proved it; what the payload says of itself is only given back.
        echo = self.echo(vehicle, delivery.payload, delivery.received_ns)
        if isinstance(echo, bytes):
            bus.publish(topics.ECHOES.of(vehicle=vehicle, worker=self._worker), echo, qos=topics.ECHOES.qos)

    def _is_allowed(self, vehicle: str, now_ns: int) -> bool:
        """Whether a vehicle may probe just now; of too many vehicles, the one that was longest silent is forgotten."""
        with self._lock:
            allowance = self._allowances.setdefault(vehicle, _Allowance(_BURST, now_ns))
            self._allowances.move_to_end(vehicle)
            if len(self._allowances) > _MAX_VEHICLES:
                self._allowances.popitem(last=False)
            return allowance.take(now_ns)
