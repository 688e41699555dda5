"""Scans ROS 1 bags of format 2.0 (wiki.ros.org/Bags/Format/2.0) sequentially."""

from collections.abc import Iterator
from pathlib import Path

from rosbag_tools.reading.decompression import MAX_CHUNK_BYTES, DecompressionError, decompress
from rosbag_tools.records import (
    Damage,
    DamagedRecordError,
    Message,
    Records,
    Serialization,
    TopicChannel,
    unpack,
)

MAGIC = b"#ROSBAG V2.0\n"

_MESSAGE = b"\x02"
_BAG_HEADER = b"\x03"
_CHUNK = b"\x05"
_CONNECTION = b"\x07"

_Header = dict[bytes, bytes]


def scan(path: Path) -> Iterator[Message | Damage]:
    """Yields the messages in the order of the file, and damage: the rest of a damaged chunk is lost.

    Damage outside a chunk ends the scan.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        records = Records(file, path.stat().st_size)
        channels: dict[int, TopicChannel] = {}
        place = "byte 0"
        try:
            records.take(len(MAGIC))
            while not records.ended:
                place = f"byte {records.at}"
                header, data = _header(records.sized("I")), records.sized("I")
                if header.get(b"op") == _BAG_HEADER:
                    if not 0 < unpack("Q", header.get(b"index_pos", b"")) <= records.size:
                        yield Damage(place, "the index is missing: the recording or the copy was interrupted")
                elif header.get(b"op") == _CHUNK:
                    yield from _chunk(header, data, channels, place)
                else:
                    yield from _record(header, data, channels, place)
        except DamagedRecordError as error:
            yield Damage(place, str(error))


def _chunk(header: _Header, data: bytes, channels: dict[int, TopicChannel], place: str) -> Iterator[Message | Damage]:
    """Yields the messages of a chunk; damage inside a chunk does not affect the next one."""
    try:
        size = unpack("I", header.get(b"size", b""))
        compression = header.get(b"compression", b"").decode(errors="replace")
        records = Records.of(decompress(data, compression, min(size, MAX_CHUNK_BYTES)))
        while not records.ended:
            yield from _record(_header(records.sized("I")), records.sized("I"), channels, place)
    except (DecompressionError, DamagedRecordError) as error:
        yield Damage(place, f"in a chunk of {len(data)} bytes: {error}")


def _record(header: _Header, data: bytes, channels: dict[int, TopicChannel], place: str) -> Iterator[Message]:
    op = header.get(b"op")
    if op == _CONNECTION:
        about = {name: value.decode(errors="replace") for name, value in _header(data).items()}
        name = header.get(b"topic", b"").decode(errors="replace")
        # rosbags normalizes names in the same way.
        topic = "/" * name.startswith("/") + "/".join(filter(None, name.split("/")))
        definition = about.get(b"message_definition", "")
        channels[unpack("I", header.get(b"conn", b""))] = TopicChannel(
            topic, about.get(b"type", ""), Serialization.ROS1, definition
        )
    elif op == _MESSAGE:
        connection = unpack("I", header.get(b"conn", b""))
        if connection not in channels:
            raise DamagedRecordError(f"a message belongs to connection {connection}, which is not announced")
        time = header.get(b"time", b"")
        time_ns = unpack("I", time[:4]) * 1_000_000_000 + unpack("I", time[4:])
        yield Message(channels[connection], time_ns, data, place)


def _header(data: bytes) -> _Header:
    records = Records.of(data)
    fields = {}
    while not records.ended:
        name, _, value = records.sized("I").partition(b"=")
        fields[name] = value
    return fields
