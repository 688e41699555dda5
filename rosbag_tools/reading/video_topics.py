"""Decodes the video topics of a bag, whose messages depend on those before them."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from rosbag_tools.messages.ros_types import read_camera
from rosbag_tools.records import Damage, Message, TopicChannel
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.registry import Entry, load
from shared.sanitize import printable

_log = logging.getLogger(__name__)

# PyAV is imported when needed: it belongs to the vehicle's extra, and only video needs it.
_CONSECUTIVE = 3  # Packets with consecutive numbers after which a missing number is a missing packet.
_CHECKED_BY_CONTENT = ("h264", "h265", "hevc", "avc")
_VIDEO_FORMATS = ("h264", "h265", "hevc", "avc", "av1", "vp8", "vp9")
_START_CODE = re.compile(rb"\0?\0\0\x01[^\0]", re.DOTALL)  # Includes the first byte of a unit of H.264 or H.265.
_HEVC_FIRST = range(32, 36)  # Types of the units with which a stream of H.265 begins.
_PAUSE_FACTOR = 1.5  # A message may be lost in a pause of more than this many periods.
_LIBRARY = {
    "decoder": Entry("shared.imaging.video_decoder:VideoDecoder", "edge"),
    "packet": Entry("shared.imaging.video_decoder:topic_packet", "edge"),
}


def with_pictures(
    items: Iterable[Message | Damage], note: Callable[[str], object] = _log.warning
) -> Iterator[Message | Damage]:
    """Yields the messages of a bag in their order, those of video topics with their picture or the reason of its loss.

    `note` gets doubts about pictures, such as HDR. Reordered frames of a video come in order of presentation, later.
    """
    topics: dict[str, _VideoTopic] = {}
    others: set[TopicChannel] = set()  # Topics that are not video.
    for item in items:
        channel = item.channel
        if channel is None:  # Any topic may have lost messages.
            for topic in topics.values():
                yield from topic.interrupt()
            yield item
        elif channel not in others and (channel.topic in topics or is_video(item)):
            topic = topics.setdefault(channel.topic, _VideoTopic(_packed_codec(item)))
            if isinstance(item, Damage):
                yield from topic.interrupt()
                yield item
            else:
                yield from topic.decode(item)
                for doubt in topic.new_doubts():
                    note(f"{channel.topic}: {doubt}")
        else:
            if isinstance(item, Message):
                others.add(channel)
            yield item
    for topic in topics.values():
        yield from topic.finish()


def is_video(item: Message | Damage) -> bool:
    """Returns whether an item belongs to a video, also if its packets were recorded as compressed images."""
    return item.channel is not None and (item.channel.has_video or bool(_packed_codec(item)))


def _packed_codec(item: Message | Damage) -> str:
    """Returns the codec of a compressed image that is a packet of a video; empty for another message."""
    if not isinstance(item, Message) or not item.channel.has_compressed_images:
        return ""
    try:
        image = read_camera(item)
    except SkylaneError:
        return ""
    if image.format.casefold().startswith(_VIDEO_FORMATS):
        return str(re.split(r"[^A-Za-z0-9-]", image.format, maxsplit=1)[0])  # An example is "h264; jpeg compressed".
    start = _START_CODE.match(bytes(image.data[:5]))
    return ("hevc" if start[0][-1] >> 1 in _HEVC_FIRST else "h264") if start else ""


class _VideoTopic:
    """The decoder of one topic, and the messages that it holds back."""

    def __init__(self, codec: str) -> None:
        """`codec`: the codec of all messages; empty if each message names it."""
        self._codec = codec
        self._decoder: Any = None
        self._doubts: tuple[str, ...] = ()
        self._format = ""
        self._numbers = count()
        self._pts = self._position = 0
        self._data = b""  # The last message, to recognize one that was recorded twice.
        self._steps = 0  # Packets whose number followed that of the packet before.
        self._time_ns = self._period_ns = 0  # Time of the last message, and shortest time between two.
        self._has_warned = False
        self._held: dict[int, Message] = {}

    def decode(self, message: Message) -> Iterator[Message]:
        decoder_class, topic_packet = (load("video", _LIBRARY, name) for name in _LIBRARY)
        try:
            fields = read_camera(message)
            pts, codec = getattr(fields, "pts", None), self._codec or fields.format
            if self._decoder is None or codec != self._format:
                yield from self.finish()
                self._decoder = None
                self._decoder, self._format = decoder_class.named(codec, fields.data), codec
        except SkylaneError as error:
            yield from self.interrupt()
            yield replace(message, loss=str(error))
            return
        is_repeated, self._data = message.data == self._data, message.data
        if self._is_gap(pts):
            yield from self.interrupt()
        if pts is None and self._format not in _CHECKED_BY_CONTENT:
            self._warn_of_pause(message)
        index = next(self._numbers)
        self._held[index] = message
        if not is_repeated:
            self._position = index if pts is None else pts
        packet = topic_packet(fields.data, self._position)
        yield from self._results(self._decoder.decode(index, packet))

    def _is_gap(self, pts: int | None) -> bool:
        """Returns whether a packet is missing before this one; for VP9 and AV1, only consecutive numbers show it."""
        if pts in (None, self._pts) or self._format in _CHECKED_BY_CONTENT:
            return False
        step, self._pts = pts - self._pts, pts
        is_gap = self._steps >= _CONSECUTIVE and step > 1
        self._steps = self._steps + 1 if step == 1 else 0
        return is_gap

    def _warn_of_pause(self, message: Message) -> None:
        """Warns once of a pause: neither the content of VP9 and AV1 nor a number shows if a message is missing."""
        step_ns, self._time_ns = message.time_ns - self._time_ns, message.time_ns
        if self._period_ns and step_ns > _PAUSE_FACTOR * self._period_ns and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: no message for %.3f s before %.3f s: if one is missing, which %s does not show, the frames up to the "
                "next key frame are wrong",
                printable(message.channel.topic),
                step_ns / 1e9,
                message.time_ns / 1e9,
                self._format,
            )
        if 0 < step_ns < message.time_ns:
            self._period_ns = min(self._period_ns or step_ns, step_ns)

    def interrupt(self) -> Iterator[Message]:
        """Ends the frames that depend on a lost message."""
        if self._decoder is not None:
            yield from self._results(self._decoder.interrupt())

    def new_doubts(self) -> tuple[str, ...]:
        """Returns the doubts of the decoder that were not returned before."""
        doubts, self._doubts = self._doubts, getattr(self._decoder, "doubts", None) or ()
        return tuple(each for each in self._doubts if each not in doubts)

    def finish(self) -> Iterator[Message]:
        if self._decoder is not None:
            yield from self._results(self._decoder.finish())

    def _results(self, results: Iterable[Any]) -> Iterator[Message]:
        for frame in results:
            message = self._held.pop(frame.index)
            picture = None if frame.pixels is None else (frame.pixels, Layout.BGR8)
            yield replace(message, picture=picture, loss=frame.reason)
