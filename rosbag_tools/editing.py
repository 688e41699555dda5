"""Write a bag anew: a part of it, some of its topics, or in another format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rosbag_tools.bag_format import BagFormat, BagPathError, chosen_format
from rosbag_tools.messages.ros_types import Converter
from rosbag_tools.reading.bag import Bag, DamagedBagError
from rosbag_tools.reading.records import Damage, Message
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError


@dataclass(frozen=True, slots=True)
class Part:
    """Which messages to take: those of `topics` (all where empty), from `start_s` on, counted from the bag's first."""

    topics: Sequence[str] = ()
    start_s: float = 0.0
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of a bag: how many messages were written, and why topics were left out."""

    messages: int
    left_out: dict[str, str]


def rewrite(
    source: Path,
    target: Path,
    *,
    part: Part = Part(),
    bag_format: str | None = None,
    compression: str = "none",
    overwrite: bool = False,
    progress: Callable[[Message], None] | None = None,
) -> Rewritten:
    """Copy the messages of `part` from one bag into a new one, byte for byte where the format's wire stays the same.

    `bag_format` None: `chosen_format` of the target's name and the source's format. A topic whose type is defined nowhere, or
    whose message is not what its type says, is left out from there on.

    Raises:
        SkylaneError: the source is missing or no bag, has no such topic, or nothing lies in that part; the target
            cannot be written.
        DamagedBagError: part of the source is lost; all that could be read was written.
    """
    with Bag(source) as bag:
        topics = {topic.name for topic in bag.find(part.topics)} if part.topics else None
        start_ns = bag.start_ns + round(part.start_s * 1e9) if part.start_s else None
        stop_ns = None
        if part.duration_s is not None:
            stop_ns = (bag.start_ns if start_ns is None else start_ns) + round(part.duration_s * 1e9)
        if start_ns is not None and start_ns > bag.end_ns:
            length_s = (bag.end_ns - bag.start_ns) / 1e9
            raise SkylaneError(f"bag {source} is {length_s:.3f} s long: nothing begins {part.start_s} s into it")
        if target.exists() and target.resolve() == source.resolve():
            raise BagPathError(f"{target} is the bag to read: write to another path")
        chosen = chosen_format(target, bag_format, BagFormat(bag.format))
        converter = Converter((topic.channel for topic in bag.topics), chosen.wire)
        lost: Damage | None = None
        left_out: dict[str, str] = {}
        with BagWriter(target, chosen, compression, overwrite=overwrite) as writer:
            for item in bag.messages(topics, start_ns, stop_ns):
                if isinstance(item, Damage):
                    lost = lost or item
                    continue
                if progress is not None:
                    progress(item)
                _copy(item, writer, converter, left_out)
        if lost is not None:
            raise DamagedBagError(source, lost, f"{writer.message_count} messages, now in {target}, were")
        return Rewritten(writer.message_count, left_out)


def _copy(message: Message, writer: BagWriter, converter: Converter, left_out: dict[str, str]) -> None:
    channel = message.channel
    if channel.topic in left_out:
        return
    try:
        data = converter.convert(message.data, channel)
    except SkylaneError as error:
        left_out[channel.topic] = str(error)
        return
    writer.write_raw(channel, data, message.time_ns, converter.types)
