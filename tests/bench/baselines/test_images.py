from pathlib import Path

import numpy as np
import pytest

from bench.baselines.images import fit, to_colour_image
from ops.processes.child import BenchError
from ops.processes.playback import first_frames
from rosbag_tools.drive.recording import DrivePlan, record
from shared.imaging.frames import Layout


@pytest.mark.parametrize(("height", "width"), [(100, 400), (400, 100), (64, 96), (128, 192)])
def test_the_longer_axis_is_cropped_around_its_middle(height: int, width: int) -> None:
    """The first system did so; a mask of other pixels could not be compared."""
    image = np.zeros((height, width, 3), np.uint8)
    top, left = height // 2 - 5, width // 2 - 5
    image[top : top + 10, left : left + 10] = 255
    cropped = fit(image, 64, 96)
    assert cropped.shape == (64, 96, 3)
    rows, columns = np.nonzero(cropped[..., 0] > 127)
    assert abs(rows.mean() - 31.5) <= 1
    assert abs(columns.mean() - 47.5) <= 1


def test_colours_are_not_swapped(bag: Path) -> None:
    """The original swapped red and blue, which made its masks worse than its method does."""
    (frame,) = first_frames(bag, 1)
    assert frame.layout is Layout.BAYER_RGGB8
    red = to_colour_image(frame, Layout.RGB8)[2:-2:2, 2:-2:2, 0]  # Pixels of the pattern keep their value.
    assert np.array_equal(red, frame.pixels[2:-2:2, 2:-2:2])
    assert np.array_equal(to_colour_image(frame, Layout.BGR8)[2:-2:2, 2:-2:2, 2], red)


def test_a_bag_without_frames_raises(tmp_path: Path, bag: Path) -> None:
    """A bag with fewer frames than requested returns all of them."""
    assert len(list(first_frames(bag, 10))) == 2
    record(tmp_path / "one", DrivePlan(seed=1, frames=1, width=64, height=48))
    with pytest.raises(BenchError, match="no readable frame"):
        list(first_frames(tmp_path / "one", 0))
