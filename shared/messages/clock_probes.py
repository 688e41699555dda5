"""Probes and echoes: the four-timestamp exchange beside the frames, as small MessagePack maps with every field checked."""

from dataclasses import dataclass

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.field_types import MAX_NS
from shared.encoding.msgpack_reader import VERSION, Fields, MessageError
from shared.messages.topics import TopicNameError, checked

MAX_PROBE_BYTES = 512  # Of either; three names of 64 characters fit.
_MAX_SEQUENCE = 1 << 53


@dataclass(frozen=True, slots=True)
class Probe:
    """A vehicle asks a worker what its clock says."""

    session: str  # Of the vehicle's run.
    sequence: int
    sent_ns: int  # By the vehicle's clock.


@dataclass(frozen=True, slots=True)
class Echo:
    """A worker gives a probe back with the times at which it had it. `node` names the process whose clock they are of."""

    session: str
    sequence: int
    sent_ns: int  # The probe's.
    received_ns: int  # By the worker's clock, as is the next.
    replied_ns: int
    node: str  # cloud/<worker>/<session>


def pack_probe(probe: Probe) -> bytes:
    """The wire form of a probe."""
    return _pack(
        {"v": VERSION, "session": probe.session, "sequence": probe.sequence, "sent_ns": probe.sent_ns},
    )


def unpack_probe(payload: Buffer) -> Probe:
    """Read a probe from the wire.

    Raises:
        MessageError: it is not a probe of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    return _probe(_fields(payload))


def pack_echo(echo: Echo) -> bytes:
    """The wire form of an echo."""
    return _pack(
        {
            "v": VERSION,
            "session": echo.session,
            "sequence": echo.sequence,
            "sent_ns": echo.sent_ns,
            "received_ns": echo.received_ns,
            "replied_ns": echo.replied_ns,
            "node": echo.node,
        }
    )


def unpack_echo(payload: Buffer) -> Echo:
    """Read an echo from the wire.

    Raises:
        MessageError: it is not an echo of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = _fields(payload)
    probe = _probe(fields)
    return Echo(
        session=probe.session,
        sequence=probe.sequence,
        sent_ns=probe.sent_ns,
        received_ns=fields.integer("received_ns", 0, MAX_NS),
        replied_ns=fields.integer("replied_ns", 0, MAX_NS),
        node=_node(fields),
    )


def _fields(payload: Buffer) -> Fields:
    if len(payload) > MAX_PROBE_BYTES:
        raise MessageError(f"a probe or echo of {len(payload)} bytes is over the limit of {MAX_PROBE_BYTES}")
    return Fields.of_message(payload)


def _probe(fields: Fields) -> Probe:
    return Probe(
        session=fields.name("session"),
        sequence=fields.integer("sequence", 0, _MAX_SEQUENCE),
        sent_ns=fields.integer("sent_ns", 0, MAX_NS),
    )


def _node(fields: Fields) -> str:
    node = fields.text("node")
    role, _, name = node.partition("/")
    if role != "cloud" or name.count("/") != 1:
        raise fields.wrong("node", f"{node[:40]!r} is not cloud/worker/session")
    try:
        for part in name.split("/"):
            checked("part of a node", part)
    except TopicNameError as error:
        raise fields.wrong("node", str(error)) from error
    return node


def _pack(fields: dict[str, str | int]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed
