"""Reads camera frames from a bag, for replay."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from rosbag_tools.messages.encodings import decode_compressed_image, decode_image
from rosbag_tools.messages.ros_types import read, read_stamp
from rosbag_tools.reading.bag import Bag, DamagedBagError, Topic
from rosbag_tools.reading.records import IMAGE, Damage, Message
from shared.clock import now_ns
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame
from shared.recorded_time import clock_jump

_log = logging.getLogger(__name__)

# Image topics that are not camera images: ground truth labels, Skylane's results, depth.
_NOT_CAMERAS = ("/labels", "/masks", "/compressedDepth")


class NoImagesError(SkylaneError):
    """A bag, or one of its topics, has no images."""


def decode(message: Message) -> tuple[Pixels, Layout]:
    """Decodes an image message into pixels and their layout (see `rosbag_tools.messages.encodings`).

    Raises:
        SkylaneError: the message is malformed, or its image cannot be decoded.
    """
    decode_fields = decode_image if message.channel.message_type == IMAGE else decode_compressed_image
    return decode_fields(read(message))


class BagSource:
    """The frames of a bag, in recording order.

    Args:
        path: The bag.
        topics: Image topics to read, with or without a leading slash; empty: all cameras.
        start_offset_s: Start of the part to read, in seconds after the first message.
        duration_s: Length of that part; None: to the end.

    Raises:
        SkylaneError: the bag is missing, is not a bag, or has no such topic (the nearest are named) or no images in it.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        topics: Sequence[str] = (),
        start_offset_s: float = 0.0,
        duration_s: float | None = None,
    ) -> None:
        if start_offset_s < 0 or (duration_s is not None and duration_s <= 0):
            raise SkylaneError(f"cannot play {duration_s} s from {start_offset_s} s on: give a part within the bag")
        self._bag = Bag(Path(path))
        try:
            self._topics = _camera_topics(self._bag, topics)
        except SkylaneError:
            self._bag.close()
            raise
        self._start_ns = self._bag.start_ns + round(start_offset_s * 1e9) if start_offset_s else None
        self._stop_ns = None
        if duration_s is not None:
            first_ns = self._bag.start_ns if self._start_ns is None else self._start_ns
            self._stop_ns = first_ns + round(duration_s * 1e9)
        self._sha256 = ""
        self._zero_stamps = False
        self._clock_note = ""  # The first time at which the recorder's clock was set back.

    @property
    def frame_count(self) -> int | None:
        """Number of frames according to the bag's index; None if only a part of the bag is read."""
        if self._start_ns is not None or self._stop_ns is not None:
            return None
        return sum(topic.count for topic in self._topics)

    @property
    def false_claims(self) -> tuple[str, ...]:
        """What the bag states about itself that is not true."""
        return tuple(map(str, (*self._bag.file_claims, *self._bag.content_claims)))

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """Identifies the bag. `notes` can grow while frames are read. The first access computes the hash."""
        self._sha256 = self._sha256 or self._bag.sha256
        notes = [*self._bag.notes]
        if self._bag.index_damage:
            notes.append(f"read front to back without its index: {self._bag.index_damage}")
        if self._zero_stamps:
            notes.append("stamps of zero were replaced by the bag's time")
        if self._clock_note:
            notes.append(self._clock_note)
        return {
            "kind": "bag",
            "path": self._bag.path.name,
            "format": self._bag.format,
            "sha256": self._sha256,
            "cameras": [topic.name for topic in self._topics],
            "notes": notes,
        }

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """Yields every frame of the selected topics once.

        Raises:
            DamagedBagError: after the last readable frame, if part of the bag is lost.
        """
        self._bag.log_notes()
        names = {topic.name for topic in self._topics}
        items = self._bag.messages(names, self._start_ns, self._stop_ns)
        index = 0
        latest_ns = 0
        lost: Damage | None = None
        while True:
            began_ns = now_ns()
            item = next(items, None)
            if item is None:
                break
            if isinstance(item, Damage) and item.channel is None:
                lost = lost or item
                continue
            if item.time_ns < latest_ns and not self._clock_note and (jump := clock_jump(latest_ns, item.time_ns)):
                self._clock_note = f"frame {index} was {jump}; frames from it on are due at once until that time"
                _log.warning("%s: %s", self._bag.path.name, self._clock_note)
            latest_ns = max(latest_ns, item.time_ns)  # Messages of a damaged bag come in file order.
            yield self._frame(item, index, latest_ns, began_ns)
            index += 1
        if lost is not None:
            raise DamagedBagError(self._bag.path, lost, f"{index} frames were")

    def close(self) -> None:
        """Closes the bag."""
        self._bag.close()

    def _frame(self, item: Message | Damage, index: int, source_ns: int, began_ns: int) -> Frame | UnreadableFrame:
        assert item.channel is not None, "a frame has a topic"
        camera = item.channel.topic
        if isinstance(item, Damage):
            return UnreadableFrame(
                camera,
                index,
                source_ns,
                source_ns,
                now_ns() - began_ns,
                f"message cannot be read: {item.reason}",
            )
        stamp_ns = source_ns
        try:
            stamp_ns = self._stamp(read_stamp(item), item, source_ns)
            pixels, layout = decode(item)
        except SkylaneError as error:
            return UnreadableFrame(camera, index, stamp_ns, source_ns, now_ns() - began_ns, str(error))
        return Frame(pixels, layout, camera, index, stamp_ns, source_ns, now_ns() - began_ns)

    def _stamp(self, stamp_ns: int, message: Message, source_ns: int) -> int:
        if stamp_ns:
            return stamp_ns
        if not self._zero_stamps:
            self._zero_stamps = True
            topic = message.channel.topic
            _log.warning("%s: stamps of zero on %s are replaced by the bag's time", self._bag.path.name, topic)
        return source_ns


def _camera_topics(bag: Bag, names: Sequence[str]) -> tuple[Topic, ...]:
    with_images = [topic for topic in bag.topics if topic.channel.has_images]
    if names:
        chosen = bag.find(names)
        for topic in chosen:
            if not topic.channel.has_images:
                known = ", ".join(each.name for each in with_images) or "no topic of this bag"
                raise NoImagesError(
                    f"topic {topic.name} has {topic.channel.type} messages, not images: images are on {known}"
                )
        return chosen
    cameras = tuple(topic for topic in with_images if not topic.name.endswith(_NOT_CAMERAS))
    if not cameras:
        if bag.index_damage and not bag.topics:
            raise NoImagesError(
                f"bag {bag.path} is damaged, and nothing in it can be read ({bag.index_damage}): copy it again from "
                "where it was recorded"
            )
        topics = ", ".join(f"{topic.name} ({topic.channel.type})" for topic in bag.topics) or "none"
        damage = f" (it is damaged: {bag.index_damage})" if bag.index_damage else ""
        raise NoImagesError(f"bag {bag.path} has no camera images{damage}: its topics are {topics}")
    return cameras
