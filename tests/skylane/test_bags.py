"""`skylane.open_bag`: decoded images with topic and stamp."""

from pathlib import Path

import numpy as np
import pytest

import skylane
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from tests.pipeline.rig import noise

STAMP_NS = 1_700_000_000_000_000_000
LEFT, RIGHT = "/left/image_raw", "/right/image_raw"


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """A bag of two cameras, one of RGB and one of BGR."""
    path = tmp_path / "drive.mcap"
    with BagWriter(path) as writer:
        for index in range(3):
            stamp_ns = STAMP_NS + index
            rgb = noise(index, (8, 12, 3))
            writer.write_image(LEFT, rgb, "rgb8", stamp_ns, stamp_ns, "camera")
            writer.write_image(RIGHT, np.ascontiguousarray(rgb[..., ::-1]), "bgr8", stamp_ns, stamp_ns, "camera")
    return path


def test_every_image_is_rgb(bag: Path) -> None:
    """Whatever its recorded colour order is."""
    images = list(skylane.open_bag(bag))
    assert [(image.topic, image.stamp_ns - STAMP_NS) for image in images] == [
        (topic, index) for index in range(3) for topic in (LEFT, RIGHT)
    ]
    for number, image in enumerate(images):
        assert image.image.dtype == np.uint8
        np.testing.assert_array_equal(image.image, noise(number // 2, (8, 12, 3)))


def test_topics_can_be_chosen(bag: Path) -> None:
    """With or without the leading slash."""
    assert {image.topic for image in skylane.open_bag(bag, topics=["left/image_raw"])} == {LEFT}
    assert {image.topic for image in skylane.open_bag(bag, topics=LEFT)} == {LEFT}


def test_what_cannot_be_opened_is_refused_at_once(bag: Path, tmp_path: Path) -> None:
    """Not only by the first step of the loop."""
    with pytest.raises(SkylaneError, match=r"missing\.mcap"):
        skylane.open_bag(tmp_path / "missing.mcap")
    with pytest.raises(SkylaneError, match="left/image_raw"):
        skylane.open_bag(bag, topics=["lefd/image_raw"])
