"""Replies to the clock messages of vehicles, which estimate the offset of the worker's clock from them."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from cloud.gateway.limits import TokenBucket
from cloud.serving.errors import ApiError, ErrorCode, InvalidError
from cloud.serving.request import RequestErrors
from shared import clock
from shared.compression import Buffer
from shared.messages import topics
from shared.messages.clock_probes import MAX_PROBE_BYTES, Echo, pack_echo, unpack_probe
from shared.messages.msgpack_reader import MessageError
from shared.mqtt.bus import Bus, Delivery
from shared.threads import Counts

_BURST = 40  # Probes that a vehicle may send at once; it starts with 16.
_RATE_HZ = 10.0  # Probes per second afterwards; a vehicle sends two.
_MAX_VEHICLES = 1024


class ClockResponder:
    """Replies on the network thread, because waiting in a queue would add to the measured round trip. Thread-safe."""

    def __init__(self, worker: str, node: str) -> None:
        """`node` is the name of this process in stamps."""
        self._worker = worker
        self._node = node
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()  # By vehicle; the most recent one is the last.
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

    def echo_call(self, vehicle: str, probe: Buffer, received_ns: int) -> bytes:
        """Same as `echo`, for the probe of a call, which may have any size; one that is too large is refused and not counted."""
        if len(probe) > MAX_PROBE_BYTES:
            raise ApiError(ErrorCode.TOO_LARGE, f"a probe of {len(probe)} bytes: send at most {MAX_PROBE_BYTES}")
        return self.echo(vehicle, bytes(probe), received_ns)

    def echo(self, vehicle: str, payload: Buffer, received_ns: int) -> bytes:
        """Returns the packed reply to a packed probe.

        Raises:
            ApiError: the probe is malformed, or one of too many; it has been counted.
        """
        if not self._is_allowed(vehicle, received_ns):
            self._refused.add("too_often")
            raise ApiError(ErrorCode.BUSY, "too many probes: send at most two per second")
        try:
            probe = unpack_probe(payload)
        except MessageError as error:
            self._refused.add("unreadable")
            raise InvalidError("the probe is malformed: send a packed Probe message") from error
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
        vehicle = names["vehicle"]  # Verified by the broker's access control, if it has one.
        with suppress(ApiError):
            reply = self.echo(vehicle, delivery.payload, delivery.received_ns)
            bus.publish(topics.ECHOES.of(vehicle=vehicle, worker=self._worker), reply, qos=topics.ECHOES.qos)

    def _is_allowed(self, vehicle: str, now_ns: int) -> bool:
        with self._lock:
            bucket = self._buckets.setdefault(vehicle, TokenBucket(_RATE_HZ, _BURST))
            self._buckets.move_to_end(vehicle)
            if len(self._buckets) > _MAX_VEHICLES:
                self._buckets.popitem(last=False)
            return bucket.take(now_ns)
