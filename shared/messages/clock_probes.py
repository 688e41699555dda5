"""The clock-offset exchange between a vehicle and a worker: probes and echoes with four timestamps, as in NTP."""

from dataclasses import asdict, dataclass

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.field_types import MAX_NS
from shared.encoding.msgpack_reader import VERSION, FieldReader, MessageError
from shared.messages.topics import TopicNameError, validate_name

MAX_PROBE_BYTES = 512  # Size limit of a probe or an echo; three names of 64 characters fit.
_MAX_SEQUENCE = 1 << 53


@dataclass(frozen=True, slots=True)
class Probe:
    """A vehicle's request for a worker's clock reading."""

    session: str  # Session of the vehicle's run.
    sequence: int
    sent_ns: int  # Vehicle clock.


@dataclass(frozen=True, slots=True)
class Echo:
    """A worker's reply to a probe: the probe's fields and the worker's own timestamps."""

    session: str
    sequence: int
    sent_ns: int  # Copied from the probe; vehicle clock.
    received_ns: int  # Worker clock.
    replied_ns: int  # Worker clock.
    node: str  # Process that owns the worker clock: cloud/<worker>/<session>.


def pack_probe(probe: Probe) -> bytes:
    """Encodes a probe."""
    return _pack(probe)


def unpack_probe(payload: Buffer) -> Probe:
    """Decodes a probe.

    Raises:
        MessageError: The payload is not a probe of this version, or a field is missing, of a wrong type or out of range.
    """
    return _read_probe(_read(payload))


def pack_echo(echo: Echo) -> bytes:
    """Encodes an echo."""
    return _pack(echo)


def unpack_echo(payload: Buffer) -> Echo:
    """Decodes an echo.

    Raises:
        MessageError: The payload is not an echo of this version, or a field is missing, of a wrong type or out of range.
    """
    fields = _read(payload)
    probe = _read_probe(fields)
    return Echo(
        session=probe.session,
        sequence=probe.sequence,
        sent_ns=probe.sent_ns,
        received_ns=fields.integer("received_ns", 0, MAX_NS),
        replied_ns=fields.integer("replied_ns", 0, MAX_NS),
        node=_read_node(fields),
    )


def _pack(message: Probe | Echo) -> bytes:
    packed: bytes = msgpack.packb({"v": VERSION, **asdict(message)})
    return packed


def _read(payload: Buffer) -> FieldReader:
    if len(payload) > MAX_PROBE_BYTES:
        raise MessageError(f"a probe or echo of {len(payload)} bytes is over the limit of {MAX_PROBE_BYTES}")
    return FieldReader.unpack(payload)


def _read_probe(fields: FieldReader) -> Probe:
    return Probe(
        session=fields.name("session"),
        sequence=fields.integer("sequence", 0, _MAX_SEQUENCE),
        sent_ns=fields.integer("sent_ns", 0, MAX_NS),
    )


def _read_node(fields: FieldReader) -> str:
    node = fields.text("node")
    role, _, name = node.partition("/")
    if role != "cloud" or name.count("/") != 1:
        raise fields.error("node", f"{node[:40]!r} is not cloud/worker/session")
    try:
        for part in name.split("/"):
            validate_name("part of a node", part)
    except TopicNameError as error:
        raise fields.error("node", str(error)) from error
    return node
