from pathlib import Path

import numpy as np
import pytest

from bench.baselines.mqtt.images import fitted, in_colour, read
from bench.load.playback import BenchError
from rosbag_tools.drive.recording import DrivePlan, record
from shared.imaging.frames import Layout


@pytest.mark.parametrize(("height", "width"), [(100, 400), (400, 100), (64, 96), (128, 192)])
def test_the_middle_of_a_picture_is_what_the_model_sees(height: int, width: int) -> None:
    """The first system cut the longer axis around its middle: a mask of other pixels would be compared with nothing."""
    picture = np.zeros((height, width, 3), np.uint8)
    top, left = height // 2 - 5, width // 2 - 5
    picture[top : top + 10, left : left + 10] = 255
    cut = fitted(picture, 64, 96)
    assert cut.shape == (64, 96, 3)
    rows, columns = np.nonzero(cut[..., 0] > 127)
    assert abs(rows.mean() - 31.5) <= 1
    assert abs(columns.mean() - 47.5) <= 1


def test_red_is_red(bag: Path) -> None:
    """The original took red for blue, which would make its masks worse than its method does: not reproduced."""
    frame = read(bag, 1)[0]
    assert frame.layout is Layout.BAYER_RGGB8
    red = in_colour(frame, Layout.RGB8)[2:-2:2, 2:-2:2, 0]  # Where the pattern has it, it is taken as it is.
    assert np.array_equal(red, frame.pixels[2:-2:2, 2:-2:2])
    assert np.array_equal(in_colour(frame, Layout.BGR8)[2:-2:2, 2:-2:2, 2], red)


def test_a_bag_without_frames_is_told(tmp_path: Path, bag: Path) -> None:
    """A baseline of no frames would be infinitely fast."""
    assert len(read(bag, 10)) == 2
    record(tmp_path / "one", DrivePlan(seed=1, frames=1, width=64, height=48))
    with pytest.raises(BenchError, match="no frame that can be read"):
        read(tmp_path / "one", 0)
