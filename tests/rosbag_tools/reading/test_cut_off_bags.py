"""Bags that a full disk or a broken copy cut off: one sentence in plain text, which names the file that was given."""

from pathlib import Path

import numpy as np
import pytest

from rosbag_tools.bag_format import BagFormat
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError

KINDS = [
    (BagFormat.ROS1, "none"), (BagFormat.ROS1, "lz4"), (BagFormat.SQLITE3, "none"), (BagFormat.SQLITE3, "zstd-file"),
    (BagFormat.MCAP, "none"), (BagFormat.MCAP, "zstd"), (BagFormat.MCAP, "zstd-file"),
]  # fmt: skip


def _cut_off(folder: Path, bag_format: BagFormat, compression: str, share: float) -> Path:
    """Writes a bag of images, and removes the end of its data file."""
    path = folder / ("drive.bag" if bag_format is BagFormat.ROS1 else "drive")
    with BagWriter(path, bag_format, compression) as bag:
        for index in range(6):
            pixels = np.full((64, 96, 3), index, np.uint8)
            bag.write_image("/cam/image_raw", pixels, "rgb8", 10**18 + index, 10**18 + index, "cam")
    data = path if path.is_file() else next(file for file in path.iterdir() if file.suffix != ".yaml")
    data.write_bytes(data.read_bytes()[: int(data.stat().st_size * share)])
    return path


@pytest.mark.parametrize(("bag_format", "compression"), KINDS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9])
def test_the_message_is_plain_text_about_the_given_bag(
    tmp_path: Path, bag_format: BagFormat, compression: str, share: float
) -> None:
    """A tuple of Python and the name of a temporary file that is gone help nobody."""
    path = _cut_off(tmp_path, bag_format, compression, share)
    try:
        source = BagSource(path)
    except SkylaneError as error:
        message = str(error)
        assert str(path) in message
    else:
        message = str(source.provenance["notes"])
        source.close()
    assert "('" not in message
    assert "skylane-bag-" not in message


def test_a_bag_of_which_nothing_is_left_is_called_damaged(tmp_path: Path) -> None:
    """It has camera images where it was recorded, so their absence is no fact about it."""
    path = _cut_off(tmp_path, BagFormat.ROS1, "none", 0.3)
    with pytest.raises(SkylaneError, match=r"is damaged, and nothing in it can be read .*: copy it again"):
        BagSource(path)


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    """A full disk leaves such files; "not a bag" would send the user to the format."""
    path = tmp_path / "drive.mcap"
    path.touch()
    with pytest.raises(SkylaneError, match=r"drive\.mcap is empty"):
        Bag(path)
