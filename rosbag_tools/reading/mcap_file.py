"""Scans MCAP files (mcap.dev/spec) sequentially, with messages in any serialization."""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rosbag_tools.reading.decompression import MAX_CHUNK_BYTES, DecompressionError, decompress, unfold_message
from rosbag_tools.records import (
    Damage,
    DamagedRecordError,
    Message,
    Records,
    Serialization,
    TopicChannel,
    unpack,
)

MAGIC = b"\x89MCAP0\r\n"

_HEADER = b"\x01"
_FOOTER = b"\x02"
_SCHEMA = b"\x03"
_CHANNEL = b"\x04"
_MESSAGE = b"\x05"
_CHUNK = b"\x06"
_DATA_END = b"\x0f"

_BLOCK_BYTES = 1 << 20
_CHUNK_CHECKSUM_AT = 24  # Position in a chunk: after two times and the uncompressed size.
_END_BYTES = 12  # The checksum of the summary and the magic bytes.

_WIRES = {each.value: each for each in (Serialization.CDR, Serialization.ROS1, Serialization.PROTOBUF)}


_Schemas = dict[int, tuple[str, str, bool]]  # Type, definition, and whether it is IDL, as announced so far.
_Channels = dict[int, TopicChannel]


def wire_of(encoding: str) -> Serialization:
    """Returns the serialization that a channel names."""
    return _WIRES.get(encoding, Serialization.OTHER)


def has_foreign_profile(path: Path) -> bool:
    """Returns True for an MCAP file without the profile of ROS 2, whose index `rosbags` does not read."""
    with path.open("rb") as file:
        start = Records(file, path.stat().st_size)
        try:
            if start.take(len(MAGIC)) != MAGIC or start.take(1) != _HEADER:
                return False
            return Records.of(start.sized("Q")).text() != "ros2"
        except DamagedRecordError:
            return False


def wrong_checksums(path: Path) -> Iterator[str]:
    """Yields the parts of a complete file, "data section" and "summary", that do not match their checksum.

    Raises:
        DamagedRecordError: the file is damaged.
    """
    with path.open("rb") as file:
        for op, at, stated in checksums(file):
            if op == _DATA_END and stated not in (0, _checksum(file, 0, at)):
                yield "data section"
        stated, computed = _summary_checksums(file)
        if stated not in (0, computed):
            yield "summary"


def checksums(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yields type, position and checksum (0: none) of the records of chunks and of the end of the data section.

    Raises:
        DamagedRecordError: the file is damaged.
    """
    records = Records(file, os.fstat(file.fileno()).st_size)
    records.skip(len(MAGIC))
    while not records.ended and (op := records.take(1)) != _FOOTER:
        at, size = records.at - len(op), records.number("Q")
        end = records.at + size
        if op in (_CHUNK, _DATA_END):
            records.skip(_CHUNK_CHECKSUM_AT * (op == _CHUNK))
            yield op, at, records.number("I")
        records.skip(end - records.at)


def add_checksums(path: Path) -> None:
    """Writes the checksums of all chunks and of the summary of a complete file, which `rosbags` leaves at 0.

    Raises:
        OSError: the file cannot be read or written.
        DamagedRecordError, DecompressionError: the file is damaged.
    """
    with path.open("r+b") as file:
        records = Records(file, path.stat().st_size)
        records.take(len(MAGIC))
        while (op := records.take(1)) not in (_DATA_END, _FOOTER):
            content = records.sized("Q")
            if op == _CHUNK:
                unfolded, _ = _unfold_chunk(Records.of(content))
                _write_checksum(file, records.at - len(content) + _CHUNK_CHECKSUM_AT, zlib.crc32(unfolded))
                file.seek(records.at)
        _, computed = _summary_checksums(file)
        _write_checksum(file, records.size - _END_BYTES, computed)


def _summary_checksums(file: BinaryIO) -> tuple[int, int]:
    """Returns the checksum that the file states (0: none), and the one of its summary; both are 0 without a summary."""
    end = file.seek(-_END_BYTES, os.SEEK_END)
    file.seek(end - 16)
    start, stated = unpack("Q", file.read(8)), unpack("I", file.read(12)[8:])
    if not 0 < start < end:
        return 0, 0
    return stated, _checksum(file, start, end)


def _checksum(file: BinaryIO, start: int, end: int) -> int:
    checksum = 0
    file.seek(start)
    for at in range(start, end, _BLOCK_BYTES):
        checksum = zlib.crc32(file.read(min(_BLOCK_BYTES, end - at)), checksum)
    return checksum


def _write_checksum(file: BinaryIO, at: int, checksum: int) -> None:
    file.seek(at)
    file.write(struct.pack("<I", checksum))


def scan(path: Path) -> Iterator[Message | Damage]:
    """Yields every message in the order of the file, and all damage.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        records = Records(file, path.stat().st_size)
        schemas: _Schemas = {}
        channels: _Channels = {}
        place = "byte 0"
        try:
            records.take(len(MAGIC))
            while not records.ended:
                place = f"byte {records.at}"
                op, content = records.take(1), records.sized("Q")
                if op in (_DATA_END, _FOOTER):
                    return
                if op == _CHUNK:
                    yield from _chunk(content, schemas, channels, place)
                else:
                    yield from _record(op, content, schemas, channels, place)
        except DamagedRecordError as error:
            yield Damage(place, str(error))
        else:
            yield Damage(
                f"byte {records.at}", "the end of the file is missing: the recording or the copy was interrupted"
            )


def _chunk(content: bytes, schemas: _Schemas, channels: _Channels, place: str) -> Iterator[Message | Damage]:
    """Yields the messages of a chunk; damage inside a chunk does not affect the next one."""
    try:
        unfolded, checksum = _unfold_chunk(Records.of(content))
        if checksum and zlib.crc32(unfolded) != checksum:
            yield Damage(place, "the checksum of a chunk does not match its content, which is read anyway")
        records = Records.of(unfolded)
        while not records.ended:
            yield from _record(records.take(1), records.sized("Q"), schemas, channels, place)
    except (DecompressionError, DamagedRecordError) as error:
        yield Damage(place, f"in a chunk of {len(content)} bytes: {error}")


def _unfold_chunk(chunk: Records) -> tuple[bytes, int]:
    """Returns the decompressed records of a chunk, and its checksum (0: none)."""
    chunk.take(16)  # Times of the first and last message.
    size, checksum = chunk.number("Q"), chunk.number("I")
    compression, data = chunk.text(), chunk.sized("Q")
    return decompress(data, compression, min(size, MAX_CHUNK_BYTES)), checksum


def _record(
    op: bytes, content: bytes, schemas: _Schemas, channels: _Channels, place: str
) -> Iterator[Message | Damage]:
    record = Records.of(content)
    if op == _SCHEMA:
        key, name, encoding, definition = record.number("H"), record.text(), record.text(), record.text()
        schemas[key] = (name, definition, encoding.endswith("idl"))
    elif op == _CHANNEL:
        key, schema, topic, encoding = record.number("H"), record.number("H"), record.text(), record.text()
        name, definition, is_idl = schemas.get(schema, ("", "", False))
        wire = wire_of(encoding)
        if not wire.is_ros:  # The definition is binary, or not needed.
            channels[key] = TopicChannel(topic, name, wire, encoding=encoding)
            return
        channels[key] = TopicChannel(topic, name, wire, definition, is_idl)
    elif op == _MESSAGE:
        key, _, time_ns, _ = record.number("H"), record.number("I"), record.number("Q"), record.number("Q")
        if key not in channels:
            raise DamagedRecordError(f"a message belongs to channel {key}, which is not announced")
        channel = channels[key]
        data = record.take(record.size - record.at)
        try:
            yield Message(channel, time_ns, unfold_message(data) if channel.wire.is_ros else data, place)
        except DecompressionError as error:
            yield Damage(place, str(error), channel, time_ns)
