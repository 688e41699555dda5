"""Reads one data file of a bag: with its index by `rosbags`, or sequentially if that fails."""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from backports import zstd
from rosbags.interfaces import Connection, ConnectionExtRosbag1, MessageDefinitionFormat, QosDurability
from rosbags.rosbag1 import Reader as Ros1Reader
from rosbags.rosbag1.reader import decompressors as _ros1_codecs
from rosbags.rosbag2.storage_mcap import DECOMPRESSORS as _MCAP_CODECS
from rosbags.rosbag2.storage_mcap import McapReader
from rosbags.rosbag2.storage_sqlite3 import Sqlite3Reader

from rosbag_tools.reading import mcap_file, ros1_file, sqlite_file
from rosbag_tools.reading.decompression import (
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    ZSTD_OPTIONS,
    DecompressionError,
    decompress,
    unfold_message,
)
from rosbag_tools.records import Damage, Message, Serialization, TopicChannel
from shared.errors import SkylaneError
from shared.files import missing_content

_NO_SCHEMA = "__schemaless__"  # rosbags' type for a channel whose schema is not in the summary.
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_COPY_BYTES = 1 << 20


def _unfold_chunk(compression: str, data: bytes, size: int = MAX_CHUNK_BYTES) -> bytes:
    return decompress(data, compression, min(size, MAX_CHUNK_BYTES))


# rosbags decompresses chunks without a limit; these are its tables of codecs.
_ros1_codecs.update({name: partial(_unfold_chunk, name) for name in ("bz2", "lz4")})
_MCAP_CODECS.update({name: partial(_unfold_chunk, name) for name in ("lz4", "zstd")})

Reader = Ros1Reader | McapReader | Sqlite3Reader


class ForeignBagError(SkylaneError):
    """A file is not a bag of a supported format."""

    def __init__(self, path: Path, problem: str = "") -> None:
        self.path, self.problem = path, problem
        known = "is not a bag: give a ROS 1 .bag (2.0), a .db3, an .mcap, or the folder of a ROS 2 bag"
        super().__init__(f"{path} {problem or known}")


_FORMATS: dict[str, tuple[type[Reader], Any]] = {  # The reader by the index, and the module with `MAGIC` and `scan`.
    "ros1": (Ros1Reader, ros1_file),
    "sqlite3": (Sqlite3Reader, sqlite_file),
    "mcap": (McapReader, mcap_file),
}


class _Stated(NamedTuple):
    """The statements of an index about the messages."""

    counts: Counter[str]  # Number of messages by topic.
    total: int
    span_ns: list[int]  # Times of the first and last message.


class DataFile:
    """A data file of any of the three formats. Opening it scans the whole file if its index is not used.

    Attributes:
        format: "ros1", "sqlite3" or "mcap", recognized by the first bytes of the file.
        counts: Number of messages by channel.
        start_ns, end_ns: Recording times of the first and last message; 0 without messages.
        index_damage: Why the index could not be used; empty if it could, or if it is only incomplete as permitted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = _format_of(path)
        self.counts: Counter[TopicChannel] = Counter()
        self.start_ns = self.end_ns = 0
        self.index_damage = ""
        self._channels: dict[int, TopicChannel] = {}
        self._reader: Reader | None = None
        self._stated: _Stated | None = None
        if self.format == "sqlite3" and sqlite_file.is_computed(path):
            self.index_damage = "one of its tables is computed when it is read"
        elif not sqlite_file.has_log(path) and not mcap_file.has_foreign_profile(path):
            self._open(_FORMATS[self.format][0](path))
        if self._reader is None:
            self._take_scan()
            if any(not channel.wire.is_ros for channel in self.counts):
                self.index_damage = ""  # The index is intact; rosbags opens none with a foreign schema.

    def messages(
        self, topics: Collection[str] | None = None, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[Message | Damage]:
        """Yields the messages of `topics` (None: all) recorded from `start_ns` on and before `stop_ns`.

        Messages in the index come in the order of their times. If reading by the index fails, the remaining messages
        follow in the order of the file, together with the damage.
        """
        given: Counter[tuple[str, int]] = Counter()
        try:
            for item in self._indexed(topics, start_ns, stop_ns):
                yield item
                if item.channel is not None:
                    given[item.channel.topic, item.time_ns] += 1
            failure = self._lost(topics, given) if start_ns is None and stop_ns is None else ""
            if self._reader is not None and not failure:
                return
        except _IndexedReadError as error:
            failure = str(error)
        damaged = False
        for item in self.scan():
            if item.channel is None:
                damaged = True
                yield item
            elif given[item.channel.topic, item.time_ns]:
                given[item.channel.topic, item.time_ns] -= 1
            elif _wanted(item.channel, item.time_ns, topics, start_ns, stop_ns):
                yield item
        if failure and not damaged:
            yield Damage("index", failure)

    def scan(self) -> Iterator[Message | Damage]:
        """Yields every message in the order of the file, with its position, and all damage."""
        try:
            yield from _FORMATS[self.format][1].scan(self.path)
        except OSError as error:
            yield Damage("disk", f"the file cannot be read further: {error.strerror}")

    def checked_scan(self) -> Iterator[Message | Damage]:
        """Yields the items of `scan`; then, if nothing is damaged, wrong MCAP checksums and false statements of the index."""
        counts: Counter[str] = Counter()
        times_ns: list[int] = []
        is_whole = True
        for item in self.scan():
            yield item
            if item.channel is None:
                is_whole = False
                continue
            counts[item.channel.topic] += 1
            times_ns = [min(*times_ns, item.time_ns), max(*times_ns, item.time_ns)] if times_ns else [item.time_ns] * 2
        if not is_whole:
            return
        if self.format == "mcap" and not self.index_damage:
            for part in mcap_file.wrong_checksums(self.path):
                yield Damage(part, f"the checksum of the {part} does not match its content")
        if self._stated is not None:
            yield from _false_statements(self._stated, counts, times_ns)

    def close(self) -> None:
        """Closes the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _indexed(
        self, topics: Collection[str] | None, start_ns: int | None, stop_ns: int | None
    ) -> Iterator[Message | Damage]:
        if self._reader is None:
            return
        connections = [each for each in self._reader.connections if topics is None or each.topic in topics]
        if not connections:
            return
        messages = self._reader.messages(connections, start_ns, stop_ns)
        while True:
            try:
                connection, time_ns, data = next(messages)
            except StopIteration:
                return
            except Exception as error:  # rosbags raises exceptions of any type for invalid bytes.
                raise _IndexedReadError(_reason(error)) from error
            if not isinstance(time_ns, int) or not isinstance(data, bytes):
                # SQLite columns can hold values of any type; the scan reports the row.
                raise _IndexedReadError("a row has no time or no message")
            channel = self._channels[connection.id]
            try:
                yield Message(channel, time_ns, unfold_message(data) if channel.wire is Serialization.CDR else data)
            except DecompressionError as error:
                yield Damage("", str(error), channel, time_ns)

    def _lost(self, topics: Collection[str] | None, given: Counter[tuple[str, int]]) -> str:
        """Returns why the index did not lead to all messages that it counts; empty if it did, or without an index."""
        counted = sum(count for channel, count in self.counts.items() if topics is None or channel.topic in topics)
        found = given.total()
        return f"it leads to {found} of {counted} messages" if self._reader and found < counted else ""

    def _open(self, reader: Reader) -> None:
        try:
            reader.open()
            if isinstance(reader, Sqlite3Reader) and reader.dbconn is not None:
                reader.dbconn.limit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_MESSAGE_BYTES)
            self._take_index(reader)
            if not isinstance(reader, McapReader) or _leads_to_all(reader):
                self._reader = reader
                return
            if not self.counts.total():  # The index has no channels, or no numbers of messages.
                self._stated = None
            self._forget_index()
            reader.close()
        except Exception as error:  # noqa: BLE001  rosbags and its codecs raise exceptions of any type for invalid bytes.
            self._forget_index()
            self._stated = None
            self.index_damage = _reason(error)

    def _forget_index(self) -> None:
        self.counts.clear()
        self.start_ns = self.end_ns = 0

    def _take_index(self, reader: Reader) -> None:
        for connection in reader.connections:
            channel = _channel(connection, self.format)
            self._channels[connection.id] = channel
            self.counts[channel] += connection.msgcount
        times = reader if isinstance(reader, Ros1Reader) else reader.metadata
        if self.counts.total():
            self.start_ns, self.end_ns = int(times.start_time), int(times.end_time) - 1
        stated = sum((Counter({channel.topic: count}) for channel, count in self.counts.items()), Counter[str]())
        total = stated.total() if isinstance(reader, Ros1Reader) else reader.metadata.message_count
        self._stated = _Stated(stated, total, [self.start_ns, self.end_ns])

    def _take_scan(self) -> None:
        for item in self.scan():
            if isinstance(item, Message):
                self.start_ns = min(self.start_ns, item.time_ns) if self.counts else item.time_ns
                self.end_ns = max(self.end_ns, item.time_ns)
                self.counts[item.channel] += 1


def unfold_file(path: Path, folder: Path) -> Path:
    """Returns the path of the data file, or of its decompressed copy in `folder` if it is compressed as a whole.

    Raises:
        DecompressionError: the file is damaged, or needs more than half of the free disk space.
    """
    with path.open("rb") as file:
        if file.read(len(_ZSTD_MAGIC)) != _ZSTD_MAGIC:
            return path
        file.seek(0)
        unfolded = folder / f"{len(list(folder.iterdir()))}_{path.stem}"  # Subfolders can have files of one name.
        with unfolded.open("wb") as target:
            _unfold(file, target, path, shutil.disk_usage(folder).free // 2)
    return unfolded


def _unfold(file: BinaryIO, target: BinaryIO, path: Path, limit_bytes: int) -> None:
    written = 0
    try:
        decompressor = zstd.ZstdDecompressor(options=ZSTD_OPTIONS)
        while not decompressor.eof:
            block = file.read(_COPY_BYTES) if decompressor.needs_input else b""
            if decompressor.needs_input and not block:
                if not written:
                    raise DecompressionError(f"{path} is compressed with zstd and cut off too early: copy it again")
                break
            written += target.write(decompressor.decompress(block, _COPY_BYTES))
            if written > limit_bytes:
                raise DecompressionError(f"{path} decompresses to more than {limit_bytes} bytes: free some disk space")
    except zstd.ZstdError as error:
        if not written:
            raise DecompressionError(f"{path} is compressed with zstd and damaged: {error}") from error
        # The data before the damage is read like a truncated bag.


def _false_statements(index: _Stated, counts: Counter[str], times_ns: Sequence[int]) -> Iterator[Damage]:
    """Yields the false statements of an index: numbers of messages by topic, and their first and last times."""
    stated, total, span_ns = index
    for topic in stated | counts:
        if stated[topic] != counts[topic]:
            reason = f"it counts {stated[topic]} messages on {topic}, and the file has {counts[topic]}"
            yield Damage("index", reason)
    if total != counts.total() and stated == counts:
        yield Damage("index", f"it counts {total} messages in all, and the file has {counts.total()}")
    if times_ns and stated.total() and times_ns != span_ns:
        span = f"from {times_ns[0]} to {times_ns[1]} ns"
        yield Damage("index", f"it states times from {span_ns[0]} to {span_ns[1]} ns, and the file has {span}")


class _IndexedReadError(Exception):
    """Reading by the index failed; a sequential scan follows."""


def _format_of(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(64)
    for name, (_, scanner) in _FORMATS.items():
        if start.startswith(scanner.MAGIC):
            return name
    raise ForeignBagError(path, missing_content(start))


def _channel(connection: Connection, name: str) -> TopicChannel:
    definition = connection.msgdef
    encoding = "ros1" if isinstance(connection.ext, ConnectionExtRosbag1) else str(connection.ext.serialization_format)
    wire = mcap_file.wire_of(encoding)
    if name == "mcap" and not wire.is_ros:  # A channel without a schema.
        return TopicChannel(str(connection.topic), str(connection.msgtype), wire, encoding=encoding)
    return TopicChannel(
        str(connection.topic),  # A damaged database can have values of any type.
        str(connection.msgtype),
        Serialization.ROS1 if name == "ros1" else Serialization.CDR,
        str(definition.data),
        definition.format is MessageDefinitionFormat.IDL,
        _is_latched(connection),
    )


def _leads_to_all(reader: McapReader) -> bool:
    """Returns False if the summary lacks optional parts, so that messages would be missed.

    An index that has only some of the chunks counts as damaged.
    """
    stated = reader.statistics
    assert stated is not None
    if 0 < len(reader.chunks) < stated.chunk_count:
        return True
    is_named = stated.channel_message_counts.keys() <= reader.channels.keys()
    has_types = all(each.msgtype != _NO_SCHEMA for each in reader.connections)
    has_places = all(chunk.message_index_offsets for chunk in reader.chunks)
    counts = (
        sum(stated.channel_message_counts.values()),
        sum(sum(chunk.channel_count.values()) for chunk in reader.chunks),
    )
    return is_named and has_types and has_places and min(counts) >= stated.message_count


def _is_latched(connection: Connection) -> bool:
    extra = connection.ext
    if isinstance(extra, ConnectionExtRosbag1):
        return bool(extra.latching)
    return any(profile.durability is QosDurability.TRANSIENT_LOCAL for profile in extra.offered_qos_profiles)


def _wanted(
    channel: TopicChannel, time_ns: int, topics: Collection[str] | None, start_ns: int | None, stop_ns: int | None
) -> bool:
    return (
        (topics is None or channel.topic in topics)
        and (start_ns is None or time_ns >= start_ns)
        and (stop_ns is None or time_ns < stop_ns)
    )


def _reason(error: Exception) -> str:
    """Returns an exception of rosbags as one line; assertion errors have no message."""
    text = str(error)
    if (
        inner := error.__context__
    ) is not None and inner.args:  # rosbags quotes the arguments of an inner exception as a tuple.
        text = text.replace(str(inner.args), str(inner))
    return " ".join(text.split())[:200] or type(error).__name__
