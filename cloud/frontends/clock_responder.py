"""Replies to the clock messages of vehicles, which estimate the offset of the worker's clock from them."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from cloud.request_errors import RequestErrors
from shared import clock
from shared.encoding.compression import Buffer
from shared.messages import topics
from shared.messages.clock_probes import Echo, pack_echo, unpack_probe
from shared.messages.msgpack_reader import MessageError
from shared.mqtt.bus import Bus, Delivery
from shared.runtime.threads import Counts

_BURST = 40.0  # Probes that a vehicle may send at once; it starts with 16.
_RATE_HZ = 10.0  # Probes per second afterwards; a vehicle sends two.
_MAX_VEHICLES = 1024


class ProbeRefusal(StrEnum):
    """The reason why a probe gets no reply."""

    TOO_OFTEN = "too_often"
    UNREADABLE = "unreadable"


@dataclass(slots=True)
class _TokenBucket:
    """The rate limit of one vehicle."""

    tokens: float
    updated_ns: int

    def take(self, now_ns: int) -> bool:
        self.tokens = min(_BURST, self.tokens + (now_ns - self.updated_ns) / 1e9 * _RATE_HZ)
        self.updated_ns = now_ns
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class ClockResponder:
    """Replies on the network thread, because waiting in a queue would add to the measured round trip. Thread-safe."""

    def __init__(self, worker: str, node: str) -> None:
        """`node` is the name of this process in stamps."""
        self._worker = worker
        self._node = node
        self._buckets: OrderedDict[str, _TokenBucket] = (
            OrderedDict()
        )  # Buckets by vehicle; the most recent one is the last.
        self._lock = threading.Lock()
        self._refused = Counts()

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of probes without a reply, by reason: `unreadable`, `too_often`, or a `topic` without a vehicle."""
        return self._refused.by_name()

    def open(self, bus: Bus, errors: RequestErrors) -> None:
        """Replies to probes that arrive over `bus`; `errors` records unexpected exceptions."""
        handler = errors.guarded("probe", partial(self._received, bus))
        bus.subscribe(topics.PROBES.filter(worker=self._worker), topics.PROBES.qos, handler)

    def echo(self, vehicle: str, payload: Buffer, received_ns: int) -> bytes | ProbeRefusal:
        """Returns the packed reply to a packed probe, or counts and returns the reason for a refusal."""
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
        vehicle = names["vehicle"]  # Verified by the broker's access control.
        reply = self.echo(vehicle, delivery.payload, delivery.received_ns)
        if isinstance(reply, bytes):
            bus.publish(topics.ECHOES.of(vehicle=vehicle, worker=self._worker), reply, qos=topics.ECHOES.qos)

    def _is_allowed(self, vehicle: str, now_ns: int) -> bool:
        with self._lock:
            bucket = self._buckets.setdefault(vehicle, _TokenBucket(_BURST, now_ns))
            self._buckets.move_to_end(vehicle)
            if len(self._buckets) > _MAX_VEHICLES:
                self._buckets.popitem(last=False)
            return bucket.take(now_ns)
