"""Reads camera frames from a bag, for replay, and decides which of its topics are cameras."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from rosbag_tools.messages.encodings import RecordedImage, encoding_of, recorded_compressed_image, recorded_image
from rosbag_tools.messages.ros_types import read_camera, read_frame_id, read_stamp
from rosbag_tools.reading.bag import Bag, DamagedBagError, Topic
from rosbag_tools.reading.video_topics import is_video, with_pictures
from rosbag_tools.records import SYNTHETIC, Damage, Message
from shared.clock import clock_jump, now_ns
from shared.errors import SkylaneError
from shared.imaging.bit_depth import MEASURED_FRAMES, BitDepth, Bits, full_range
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame, names_depth
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.messages.topics import CameraNames
from shared.sanitize import printable

_log = logging.getLogger(__name__)

NO_PICTURES = ("/labels", "/masks")  # Ground truth and Skylane's results; their values are never scaled.
# OpenCV's types; REP 118 uses 16UC1 and 32FC1 for depth.
_NUMBERS = re.compile("^(16UC1|(8S|16S|32S|32F|64F)C[0-9]+)$")
_INFRARED = re.compile("(^|[/_])(ir|infra[a-z]*|nir|lwir|mwir|swir|thermal|therm)[0-9]*([/_]|$)", re.IGNORECASE)

_PICTURES = re.compile("image|video", re.IGNORECASE)  # Types and names of cameras in any serialization.


def decode(message: Message) -> tuple[Pixels, Layout]:
    """Decodes an image message into pixels and their layout; 16-bit values as recorded, of 16-bit colour the high byte.

    A message of a video must come from `with_pictures`.

    Raises:
        SkylaneError: the message is malformed, or its image cannot be decoded.
    """
    if message.is_video:
        return _video_picture(message)
    image = _recorded(message)
    return full_range(image.pixels, image.layout), image.layout


class ImageDecoder:
    """Decodes the images of some topics of a bag; 16-bit values are scaled to the full range.

    Args:
        bag: The bag, whose first images are measured.
        topics: The topics.
        bits: The bits of 16-bit values.
        encodings: Replacements of the recorded encoding: `ENCODING` for all topics of raw images, or `TOPIC=ENCODING`.
        keep_values: True if 16-bit grey and Bayer images keep the recorded values.
        note: Called with a text about each automatic decision.

    Raises:
        SkylaneError: an encoding is unknown, or belongs to no topic of raw images.
    """

    def __init__(
        self,
        bag: Bag,
        topics: Sequence[Topic],
        *,
        bits: Bits = "auto",
        encodings: Sequence[str] = (),
        keep_values: bool = False,
        note: Callable[[str], None] = _log.warning,
    ) -> None:
        self._encodings = _encodings_by_topic(bag, topics, encodings)
        self._keeps_values = keep_values
        self._depths = {
            # Distances have no full range, so they are scaled only if the user gives their bits.
            topic.name: BitDepth(topic.name, "16" if bits == "auto" and names_depth(topic.name) else bits, note)
            for topic in topics
            if not topic.name.endswith(NO_PICTURES)
        }
        for name, depth in self._depths.items():
            images = wide_images(bag, name, self._encodings.get(name, ""))
            depth.measure(image.pixels for image in images if not self._keeps(image))

    def decode(self, message: Message, index: int | None = None) -> tuple[Pixels, Layout]:
        """Decodes an image message; `index`: number of the frame, for error messages.

        Raises:
            SkylaneError: the message is malformed, its image cannot be decoded, or a value has more bits than were given.
        """
        if message.is_video:
            return _video_picture(message)
        topic = message.channel.topic
        image = _recorded(message, self._encodings.get(topic, ""))
        if topic not in self._depths:
            return full_range(image.pixels, image.layout), image.layout
        if self._keeps(image):
            return image.pixels, image.layout
        return self._depths[topic].scaled(image.pixels, image.layout, index, image.bits), image.layout

    def _keeps(self, image: RecordedImage) -> bool:
        return self._keeps_values and image.layout.dtype.itemsize > 1


class BagSource:
    """The frames of a bag, in recording order.

    Args:
        path: The bag.
        topics: Image topics to read, with or without a leading slash; empty: all cameras.
        start_offset_s: Start of the part to read, in seconds after the first message.
        duration_s: Length of that part; None: to the end.
        bits, encodings, keep_values: See ImageDecoder.

    Attributes:
        names: File names of the bag's image topics; they do not depend on the selected topics.

    Raises:
        SkylaneError: the bag is missing, is not a bag, has no images, or no such topic (the error names similar ones).
    """

    def __init__(
        self,
        path: Path | str,
        *,
        topics: Sequence[str] = (),
        start_offset_s: float = 0.0,
        duration_s: float | None = None,
        bits: Bits = "auto",
        encodings: Sequence[str] = (),
        keep_values: bool = False,
    ) -> None:
        if start_offset_s < 0 or (duration_s is not None and duration_s <= 0):
            raise SkylaneError(f"cannot play {duration_s} s from {start_offset_s} s on: give a part within the bag")
        self._bag = Bag(Path(path))
        self._notes: list[str] = []
        self.names = CameraNames(topic.name for topic in self._bag.topics if topic.channel.has_images)
        try:
            self._topics = _camera_topics(self._bag, topics, self._note)
            self._decoder = ImageDecoder(
                self._bag, self._topics, bits=bits, encodings=encodings, keep_values=keep_values, note=self._note
            )
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
        self._is_set_back = False  # True once the recorder's clock was set back.

    @property
    def frame_count(self) -> int | None:
        """Number of frames according to the bag's index; None if only a part of the bag is read."""
        if self._start_ns is not None or self._stop_ns is not None:
            return None
        return sum(topic.count for topic in self._topics)

    @property
    def false_claims(self) -> tuple[str, ...]:
        """The false statements of the bag about itself."""
        return tuple(map(str, (*self._bag.file_claims, *self._bag.content_claims)))

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """Identifies the bag. `notes` can grow while frames are read. The first access computes the hash."""
        self._sha256 = self._sha256 or self._bag.sha256
        return {
            "kind": "bag",
            "path": self._bag.path.name,
            "format": self._bag.format,
            "sha256": self._sha256,
            "cameras": [topic.name for topic in self._topics],
            **({"synthetic": True} if all(is_synthetic(self._bag, topic) for topic in self._topics) else {}),
            "notes": self.notes,
        }

    @property
    def notes(self) -> list[str]:
        """Notes on automatic decisions, such as topics that are left out; it can grow while frames are read."""
        notes = [*self._bag.notes]
        if self._bag.index_damage:
            notes.append(f"read front to back without its index: {self._bag.index_damage}")
        if self._zero_stamps:
            notes.append("stamps of zero were replaced by the bag's time")
        return [*notes, *self._notes]

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """Yields every frame of the selected topics once.

        Raises:
            DamagedBagError: after the last readable frame, if part of the bag is lost.
        """
        self._bag.log_notes()
        names = {topic.name for topic in self._topics}
        firsts = {name: self._bag.first_message(name) for name in names}
        videos = {name for name, first in firsts.items() if first is not None and is_video(first)}
        items = self._bag.messages(names, self._start_ns, self._stop_ns)
        if videos and self._start_ns is not None:  # Frames depend on those before the part.
            items = chain(self._bag.messages(videos, None, self._start_ns), items)
        items = with_pictures(items, self._note) if videos else items
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
            if self._start_ns is not None and item.time_ns < self._start_ns:
                continue
            if item.time_ns < latest_ns and not self._is_set_back and (jump := clock_jump(latest_ns, item.time_ns)):
                self._is_set_back = True
                self._note(f"frame {index} was {jump}; frames from it on are due at once until that time")
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
            pixels, layout = self._decoder.decode(item, index)
        except SkylaneError as error:
            return UnreadableFrame(camera, index, stamp_ns, source_ns, now_ns() - began_ns, str(error))
        return Frame(pixels, layout, camera, index, stamp_ns, source_ns, now_ns() - began_ns)

    def _note(self, text: str) -> None:
        self._notes.append(printable(text))
        _log.warning("%s: %s", self._bag.path.name, self._notes[-1])

    def _stamp(self, stamp_ns: int, message: Message, source_ns: int) -> int:
        if stamp_ns:
            return stamp_ns
        if not self._zero_stamps:
            self._zero_stamps = True
            topic = message.channel.topic
            _log.warning("%s: stamps of zero on %s are replaced by the bag's time", self._bag.path.name, topic)
        return source_ns


def wide_images(bag: Bag, topic: str, encoding: str = "") -> Iterator[RecordedImage]:
    """Yields the first images of a topic if they have 16 bits, of which the encoding does not say how many are used."""
    for message in chain([bag.first_message(topic)], islice(bag.messages({topic}), 1, MEASURED_FRAMES)):
        if not isinstance(message, Message):
            continue
        if is_video(message):
            return
        try:
            with suppress(ImageHeaderError):
                if not message.channel.has_raw_images and read_header(memoryview(read_camera(message).data)).bits == 8:
                    return
            image = _recorded(message, encoding)
        except SkylaneError:
            continue
        if image.pixels.dtype.itemsize == 1 or image.bits is not None:
            return
        yield image


def depth_topics(bag: Bag) -> dict[str, str]:
    """Returns the image topics that are not cameras, by name or by the first image's encoding, each with a note."""
    notes = {}
    for topic in bag.topics:
        if not topic.channel.has_images or topic.name.endswith(NO_PICTURES):
            continue
        if names_depth(topic.name):
            notes[topic.name] = "its name says that it holds distances: name the topic to use it all the same"
        elif topic.count and (encoding := _number_encoding(bag, topic.name)):
            remedy = ": name the topic to use it all the same" if encoding == "16UC1" else ", which are not pictures"
            notes[topic.name] = f"its images are {encoding}, as distances are{remedy}"
    return {name: f"{name} is not taken for a camera, because {reason}" for name, reason in notes.items()}


def is_synthetic(bag: Bag, topic: Topic) -> bool:
    """Returns whether the images of a topic are marked as those of a drive that Skylane rendered."""
    message = bag.first_message(topic.name) if topic.channel.has_images else None
    try:
        return message is not None and read_frame_id(message).startswith(SYNTHETIC)
    except SkylaneError:
        return False


def _number_encoding(bag: Bag, topic: str) -> str:
    """Returns the encoding of a topic's first image if it is one of numbers, such as depth; otherwise empty."""
    message = bag.first_message(topic)
    if message is None or message.channel.has_video:
        return ""
    try:
        image = read_camera(message)
    except SkylaneError:
        return ""
    encoding: str = image.encoding if message.channel.has_raw_images else image.format.partition(";")[0].strip()
    is_infrared = encoding == "16UC1" and _INFRARED.search(topic)
    return encoding if _NUMBERS.match(encoding) and not is_infrared else ""


def _recorded(message: Message, encoding: str = "") -> RecordedImage:
    if message.channel.has_raw_images:
        return recorded_image(read_camera(message), encoding)
    return recorded_compressed_image(read_camera(message))


def _video_picture(message: Message) -> tuple[Pixels, Layout]:
    if message.picture is None:
        raise SkylaneError(message.loss)
    return message.picture


def _encodings_by_topic(bag: Bag, topics: Sequence[Topic], encodings: Sequence[str]) -> dict[str, str]:
    raw = [topic.name for topic in topics if topic.channel.has_raw_images]
    chosen: dict[str, str] = {}
    for option in sorted(encodings, key=lambda text: "=" in text):  # A topic's own encoding replaces that of all.
        name, _, encoding = option.rpartition("=")
        encoding_of(encoding)
        names = [topic.name for topic in bag.find([name])] if name else raw
        if not names or not set(names) <= set(raw):
            raise SkylaneError(
                f"--encoding {option}: only topics of raw images that are used can have one: {', '.join(raw) or 'there are none'}"
            )
        chosen |= dict.fromkeys(names, encoding)
    return chosen


def _camera_topics(bag: Bag, names: Sequence[str], note: Callable[[str], None]) -> tuple[Topic, ...]:
    with_images = [topic for topic in bag.topics if topic.channel.has_images]
    if names:
        chosen = bag.find(names)
        for topic in chosen:
            if not topic.channel.has_images:
                known = ", ".join(other.name for other in with_images) or "no topic of this bag"
                if topic.channel.fault:
                    raise SkylaneError(f"topic {topic.name} has {_described(topic)}: convert it to ROS 2 or protobuf")
                raise SkylaneError(
                    f"topic {topic.name} has {topic.channel.type} messages, not images: images are on {known}"
                )
        return chosen
    depths = depth_topics(bag)
    cameras = tuple(topic for topic in with_images if not topic.name.endswith(NO_PICTURES) and topic.name not in depths)
    if not cameras:
        if bag.index_damage and not bag.topics:
            raise SkylaneError(
                f"bag {bag.path} is damaged, and nothing in it can be read ({bag.index_damage}): copy it again from "
                "where it was recorded"
            )
        topics = ", ".join(f"{topic.name} ({_described(topic)})" for topic in bag.topics) or "none"
        damage = f" (it is damaged: {bag.index_damage})" if bag.index_damage else ""
        notes = "".join(f"; {each}" for each in depths.values())
        raise SkylaneError(f"bag {bag.path} has no camera images{damage}: its topics are {topics}{notes}")
    unread = [each for each in bag.topics if each.channel.fault and _PICTURES.search(each.channel.type + each.name)]
    for text in (*depths.values(), *(f"{each.name} is not read: it has {_described(each)}" for each in unread)):
        note(text)
    return cameras


def _described(topic: Topic) -> str:
    fault = topic.channel.fault
    return f"{topic.count} of {topic.channel.type or 'an unnamed type'}: {fault}" if fault else topic.channel.type
