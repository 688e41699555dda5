"""Finds the messages of a bag that are damaged, undecodable or implausible, and their position.

Also finds false statements of the metadata and the index, and topics that cannot be checked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rosbags.typesys.store import Typestore

from rosbag_tools.messages.ros_types import HEADER, read, read_stamp, types_of
from rosbag_tools.reading import mcap_file
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import DamagedRecordError, Message, Serialization, TopicChannel
from shared.clock import clock_jump
from shared.errors import SkylaneError

_FIRST_CHUNK_BYTES = 8192  # The header of a ROS 1 bag has 4096 bytes, the one of its first chunk follows.


@dataclass(frozen=True, slots=True)
class BagFault:
    """A fault in a bag, with its position."""

    place: str  # "byte 4117" of its file, "row 12" of its database, or "index".
    topic: str  # Empty if the topic is unknown.
    sequence: int | None  # Index of the message in its topic, from 0.
    stamp_ns: int | None  # Stamp of the message, or its recording time if it has none.
    reason: str


def verify(path: Path, progress: Callable[[Message], object] = lambda _: None) -> Iterator[BagFault]:
    """Reads every message of a bag in order and yields each fault when it is found.

    Images are decoded; other messages are parsed if the bag or ROS has their definition. `progress` is called with
    every message.

    Raises:
        SkylaneError: the bag is missing, or is not a bag.
    """
    with Bag(path) as bag:
        check = _Check(bag)
        found = is_damaged = False
        for claim in bag.file_claims:
            yield BagFault(claim.place, "", None, None, claim.reason)
        for bag_topic in bag.topics:
            if fault := bag_topic.channel.fault:
                found = True
                yield BagFault("not checked", bag_topic.name, None, None, f"its {bag_topic.count} messages: {fault}")
        for item in with_pictures(bag.scan()):
            if isinstance(item, Message):
                progress(item)
                findings = check.message(item)
            else:
                is_damaged = True
                topic = item.channel.topic if item.channel is not None else ""
                time_ns = item.time_ns if item.channel is not None else None
                findings = [BagFault(item.place, topic, check.next(topic) if topic else None, time_ns, item.reason)]
            found = found or bool(findings)
            yield from findings
        for claim in () if is_damaged else bag.content_claims:  # Damage makes the numbers of messages differ.
            yield BagFault(claim.place, "", None, None, claim.reason)
        if bag.index_damage and not is_damaged:
            rest = "" if found else ": the messages themselves are intact"
            yield BagFault("index", "", None, None, bag.index_damage + rest)


def without_checksums(bag: Bag) -> tuple[str, ...]:
    """Returns the names of the data files without a checksum of their messages; compression other than MCAP's may have one."""
    return tuple(file.name for file in bag.files if file.suffix != ".zstd" and not _has_checksum(file))


def _has_checksum(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(len(mcap_file.MAGIC))
        if start.startswith(b"#ROSBAG"):
            return b"compression=none" not in file.read(_FIRST_CHUNK_BYTES)  # bz2 has checksums, lz4 can have them.
        if start != mcap_file.MAGIC:
            return False
        file.seek(0)
        try:
            return any(stated for *_, stated in mcap_file.checksums(file))
        except DamagedRecordError:
            return False


class _Check:
    """Checks messages in the order of a bag."""

    def __init__(self, bag: Bag) -> None:
        channels = [topic.channel for topic in bag.topics]
        self._types = {
            wire: types_of((each for each in channels if each.wire is wire), wire)
            for wire in Serialization
            if wire.is_ros
        }
        self._counts: Counter[str] = Counter()
        self._latest_ns: dict[TopicChannel, int] = {}
        self._recorded_ns: dict[TopicChannel, int] = {}
        self._newest_ns: int | None = None

    def next(self, topic: str) -> int:
        """Returns the index of the next message of a topic, from 0."""
        self._counts[topic] += 1
        return self._counts[topic] - 1

    def message(self, message: Message) -> list[BagFault]:
        channel, types = message.channel, self._types.get(message.channel.wire)
        sequence = self.next(channel.topic)
        stamp_ns: int | None = None
        jump = self._clock_jump(message)
        reasons = [f"it was {jump}"] if jump else []
        try:
            if _has_header(channel, types):
                stamp_ns = read_stamp(message)
                reasons += self._backwards(channel, stamp_ns)
            if channel.has_images:
                decode(message)
            elif channel.wire is Serialization.PROTOBUF or (types and channel.message_type in types.fielddefs):
                # The bytes of an unknown type cannot be checked.
                read(message, types)
        except SkylaneError as error:
            reasons.append(str(error))
        at_ns = stamp_ns or message.time_ns
        return [BagFault(message.place, channel.topic, sequence, at_ns, reason) for reason in reasons]

    def _clock_jump(self, message: Message) -> str:
        """Compares a jump back with the topic, as files can be ordered by topic, and a jump ahead with all topics."""
        time_ns = message.time_ns
        before_ns = self._recorded_ns.get(message.channel, time_ns)
        newest_ns = time_ns if self._newest_ns is None else self._newest_ns
        self._recorded_ns[message.channel], self._newest_ns = time_ns, max(newest_ns, time_ns)
        return clock_jump(before_ns if time_ns < before_ns else min(newest_ns, time_ns), time_ns)

    def _backwards(self, channel: TopicChannel, stamp_ns: int) -> list[str]:
        latest_ns = self._latest_ns.get(channel, 0)
        self._latest_ns[channel] = max(latest_ns, stamp_ns)
        if stamp_ns and stamp_ns < latest_ns:  # A stamp of zero is replaced by the bag's time.
            return [f"its stamp is {(latest_ns - stamp_ns) / 1e9:.6f} s before that of an earlier message"]
        return []


def _has_header(channel: TopicChannel, types: Typestore | None) -> bool:
    if channel.has_images:
        return True
    if types is None or channel.message_type not in types.fielddefs:
        return False
    _, fields = types.fielddefs[channel.message_type]
    return bool(fields) and fields[0][1][1] == HEADER
