"""Copies a bag or a part of it, by time or topics, and converts its format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rosbag_tools.bag_format import BagFormat, chosen_format
from rosbag_tools.messages.ros_types import Converter
from rosbag_tools.reading.bag import Bag, DamagedBagError
from rosbag_tools.records import Damage, Message
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of a copy: the number of messages written, and why topics were left out."""

    messages: int
    left_out: dict[str, str]


def rewrite(
    source: Path,
    target: Path,
    *,
    topics: Sequence[str] = (),
    start_s: float = 0.0,
    duration_s: float | None = None,
    bag_format: str | None = None,
    compression: str = "none",
    overwrite: bool = False,
    progress: Callable[[Message], object] = lambda _: None,
) -> Rewritten:
    """Copies messages into a new bag, unchanged unless the serialization of the formats differs.

    `topics` (empty: all) and the times, in seconds after the bag's first message, select the messages.
    Without `bag_format`, `chosen_format` selects it. A topic is left out from the first message
    whose type is unknown or whose bytes do not fit its type.

    Raises:
        SkylaneError: the source is missing, is not a bag, or has no such topic or no message in that part; or the
            target cannot be written.
        DamagedBagError: part of the source is lost; everything readable was written.
    """
    with Bag(source) as bag:
        bag.log_notes()
        names = {topic.name for topic in bag.find(topics)} if topics else None
        start_ns = bag.start_ns + round(start_s * 1e9) if start_s else None
        stop_ns = None
        if duration_s is not None:
            stop_ns = (bag.start_ns if start_ns is None else start_ns) + round(duration_s * 1e9)
        if start_ns is not None and start_ns > bag.end_ns:
            length_s = (bag.end_ns - bag.start_ns) / 1e9
            raise SkylaneError(f"bag {source} is {length_s:.3f} s long: no message is later than --start {start_s}")
        if target.exists() and target.resolve() == source.resolve():
            raise SkylaneError(f"{target} is the source bag: write to another path")
        chosen = chosen_format(target, bag_format, BagFormat(bag.format))
        converter = Converter((topic.channel for topic in bag.topics), chosen.wire)
        lost: Damage | None = None
        left_out: dict[str, str] = {}
        with BagWriter(target, chosen, compression, overwrite=overwrite) as writer:
            for item in bag.messages(names, start_ns, stop_ns):
                if isinstance(item, Damage):
                    lost = lost or item
                    continue
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
