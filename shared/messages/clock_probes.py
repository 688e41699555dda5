"""The clock-offset exchange between a vehicle and a worker: probes and echoes with four timestamps, as in NTP."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from shared.messages.msgpack_reader import Name, Nanoseconds, Schema
from shared.messages.topics import NAME

MAX_PROBE_BYTES = 512  # Size limit of a probe or an echo; three names of 64 characters fit.
_MAX_SEQUENCE = 1 << 53

_Node = Annotated[str, Meta(pattern=rf"\Acloud/{NAME.pattern}/{NAME.pattern}\Z", description="cloud/worker/session")]


@dataclass(frozen=True, slots=True)
class Probe:
    """A vehicle's request for a worker's clock reading."""

    session: Name  # Session of the vehicle's run.
    sequence: Annotated[int, Meta(ge=0, le=_MAX_SEQUENCE)]
    sent_ns: Nanoseconds  # Vehicle clock.


@dataclass(frozen=True, slots=True)
class Echo(Probe):
    """A worker's reply to a probe: the probe's fields and the worker's own timestamps."""

    received_ns: Nanoseconds  # Worker clock.
    replied_ns: Nanoseconds  # Worker clock.
    node: _Node  # Process that owns the worker clock.


_PROBES = Schema(Probe, noun="a probe or echo", max_bytes=MAX_PROBE_BYTES)
_ECHOES = Schema(Echo, noun="a probe or echo", max_bytes=MAX_PROBE_BYTES)
pack_probe, unpack_probe = _PROBES.write, _PROBES.read
pack_echo, unpack_echo = _ECHOES.write, _ECHOES.read
