"""Describes the content of a bag: topics, images, rates and gaps, in one pass."""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from rosbag_tools.messages.ros_types import read_camera, read_stamp
from rosbag_tools.reading.bag import Bag, Topic
from rosbag_tools.reading.frames import NO_PICTURES, decode, depth_topics, is_synthetic, wide_images
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Message, TopicChannel
from shared.clock import clock_jump
from shared.errors import SkylaneError
from shared.imaging.bit_depth import measured_bits
from shared.imaging.image_files import decode_picture
from shared.imaging.image_header import JPEG_SIGNATURE, PNG_SIGNATURE, read_header

_SHOWN_JUMPS = 3
_ORIENTATION = re.compile(  # The first entry for the orientation in EXIF data of either byte order.
    rb"(?:Exif\0\0|eXIf)(?:II.{,4096}?\x12\x01\x03\0\x01\0\0\0(.)|MM.{,4096}?\x01\x12\0\x03\0\0\0\x01\0(.))", re.DOTALL
)
GAP_FACTOR = 1.5  # A pause longer than this many median periods counts as a gap.


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic of a bag; fields about images or rates are empty or None if they do not apply."""

    name: str
    type: str
    count: int
    encodings: dict[str, int]  # Number of messages by encoding, or by format if compressed.
    resolutions: dict[str, int]  # Number of messages by size, as "1936×1216" (width first).
    rate_hz: float | None  # Average over the whole topic, including gaps.
    gaps: int  # Number of pauses longer than GAP_FACTOR median periods.
    worst_gap_s: float | None
    zero_stamps: int
    unreadable: int  # Messages whose image header cannot be read.
    bits: str  # Bits of the values in 16-bit images, measured in the first ones; empty for 8 bits.
    serialization: str = ""  # Serialization of the messages.
    fault: str = ""  # The reason why the messages are not supported; empty if they are.


@dataclass(frozen=True, slots=True)
class BagReport:
    """The content of a bag: its format, times, size, topics and notes."""

    path: str
    format: str
    duration_s: float
    start_ns: int
    size_bytes: int
    sha256: str
    messages: int
    topics: tuple[TopicReport, ...]
    notes: tuple[str, ...]
    synthetic: bool  # True if images are marked as rendered by Skylane.


def inspect(path: Path) -> BagReport:
    """Reads a bag completely and describes its content.

    Raises:
        SkylaneError: the bag is missing, or is not a bag.
    """
    with Bag(path) as bag:
        depths = depth_topics(bag)
        tallies = {
            topic.channel: _Tally(topic.channel, "" if topic.name in depths else _bits(bag, topic))
            for topic in bag.topics
        }
        damage: list[str] = []
        jumps: list[str] = []
        latest_ns = None
        for item in with_pictures(bag.messages()):
            if item.channel is not None:
                latest_ns = item.time_ns if latest_ns is None else latest_ns
                if jump := clock_jump(latest_ns, item.time_ns):
                    jumps.append(f"a message of {item.channel.topic} was {jump}")
                latest_ns = item.time_ns if jump else max(latest_ns, item.time_ns)
            if isinstance(item, Message):
                tallies.setdefault(item.channel, _Tally(item.channel)).add(item)
            elif item.channel is not None:
                tallies.setdefault(item.channel, _Tally(item.channel)).damaged += 1
            else:
                damage.append(f"damaged at {item.place}: {item.reason}")
        topics = tuple(tally.report() for tally in tallies.values())
        if bag.index_damage:
            damage.insert(0, f"read front to back without its index: {bag.index_damage}")
        zeros = [topic.name for topic in topics if topic.zero_stamps]
        notes = [f"stamps of zero on {', '.join(zeros)} are replaced by the bag's time"] if zeros else []
        return BagReport(
            path=str(path),
            format=bag.format,
            duration_s=(bag.end_ns - bag.start_ns) / 1e9,
            start_ns=bag.start_ns,
            size_bytes=bag.size_bytes,
            sha256=bag.sha256,
            messages=sum(topic.count for topic in topics),
            topics=topics,
            notes=(*bag.notes, *damage, *jumps[:_SHOWN_JUMPS], *notes, *depths.values()),
            synthetic=any(is_synthetic(bag, topic) for topic in bag.topics),
        )


@dataclass(slots=True)
class _Tally:
    """Counts one topic's messages."""

    channel: TopicChannel
    bits: str = ""
    times_ns: list[int] = field(default_factory=list)
    encodings: Counter[str] = field(default_factory=Counter)
    resolutions: Counter[str] = field(default_factory=Counter)
    zero_stamps: int = 0
    unreadable: int = 0
    damaged: int = 0  # Messages that cannot be read at all.

    def add(self, message: Message) -> None:
        self.times_ns.append(message.time_ns)
        if not self.channel.has_images:
            return
        try:
            stamp_ns = read_stamp(message)
            encoding, size = self._picture(message)
        except SkylaneError:
            self.unreadable += 1
            return
        self.encodings[encoding] += 1
        self.resolutions[size] += 1
        self.zero_stamps += stamp_ns == 0

    def _picture(self, message: Message) -> tuple[str, str]:
        """Returns encoding or format, and the size."""
        image = read_camera(message)
        if message.is_video:
            height, width = decode(message)[0].shape[:2]
            return image.format, f"{width}×{height}"
        if self.channel.has_raw_images:
            return image.encoding, f"{image.width}×{image.height}"
        return image.format, _picture_size(bytes(image.data))

    def report(self) -> TopicReport:
        times = sorted(self.times_ns)
        periods = [later - earlier for earlier, later in pairwise(times)]
        usual = median(periods) if periods else 0
        span_ns = sum(periods)
        gaps = [period for period in periods if period > GAP_FACTOR * usual]
        return TopicReport(
            name=self.channel.topic,
            type=self.channel.message_type,
            count=len(times) + self.damaged,
            encodings=dict(self.encodings),
            resolutions=dict(self.resolutions),
            rate_hz=len(periods) * 1e9 / span_ns if span_ns else None,
            gaps=len(gaps),
            worst_gap_s=max(gaps) / 1e9 if gaps else None,
            zero_stamps=self.zero_stamps,
            unreadable=self.unreadable + self.damaged,
            bits=self.bits,
            serialization=self.channel.encoding or self.channel.wire.value,
            fault=self.channel.fault,
        )


def _bits(bag: Bag, topic: Topic) -> str:
    if not topic.channel.has_images or topic.name.endswith(NO_PICTURES):
        return ""
    return str(measured_bits(image.pixels for image in wide_images(bag, topic.name)) or "")


def _picture_size(data: bytes) -> str:
    """Returns the size of an image as it is decoded: upright."""
    if not data.startswith((JPEG_SIGNATURE, PNG_SIGNATURE)):
        height, width = decode_picture(data).shape[:2]
        return f"{width}×{height}"
    header = read_header(data)
    height, width = header.height, header.width
    if any(
        b"\x05" <= value <= b"\x08" for found in [_ORIENTATION.search(data)] if found for value in found.groups(b"")
    ):
        height, width = decode_picture(data).shape[:2]
    return f"{width}×{height}"
