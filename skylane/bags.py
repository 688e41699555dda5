"""Reads the images of bags, without ROS: `skylane.open_bag`."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.image_files import ImageArray
from shared.logs import get_logger
from skylane.arguments import list_argument, path_argument, text_argument

_LOG = get_logger("bags")


class BagImage(NamedTuple):
    """An image of a bag."""

    image: ImageArray  # RGB, H×W×3 uint8.
    topic: str
    stamp_ns: int  # Time stamp of the message's header, ns since 1970.


def open_bag(path: Path | str, *, topics: str | Iterable[str] = ()) -> Iterator[BagImage]:
    """Opens a ROS 1 or ROS 2 bag (.bag, .db3, .mcap or the folder of one), and yields its images in recording order.

    Compressed, raw, Bayer and video images become RGB; 16-bit values are scaled to 8 bits. An image that cannot be decoded
    is left out, with a warning in the log.

    Args:
        path: The bag.
        topics: Image topics to read, one or several; empty: all cameras.

    Raises:
        SkylaneError: the bag cannot be read, or has no images or no such topic. Raised by the loop after the last readable
            image if a part of the bag is damaged.
    """
    names = list_argument("topics", topics, "the name of a topic")
    for name in names:
        text_argument("topics", name, "give names of topics, such as '/camera/image_raw'")
    return _images(BagSource(path_argument("path", path, "a bag"), topics=names))


def _rgb(frame: Frame | UnreadableFrame) -> ImageArray:
    if isinstance(frame, UnreadableFrame):
        raise SkylaneError(frame.reason)
    return to_colour(frame.pixels, frame.layout, Layout.RGB8, "bilinear")


def _images(source: BagSource) -> Iterator[BagImage]:
    with closing(source):
        for frame in source.frames():
            try:
                rgb = _rgb(frame)
            except SkylaneError as error:
                _LOG.warning("image left out", topic=frame.camera, index=frame.index, reason=str(error))
                continue
            yield BagImage(rgb, frame.camera, frame.stamp_ns)
