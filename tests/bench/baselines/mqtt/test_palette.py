import cv2
import numpy as np
import pytest

from bench.baselines.mqtt.palette import kept, painted, palette_of
from shared.imaging.labels import Labels

LABELS = Labels(("road", "car", "sky"), ((128, 64, 128), (0, 0, 142), (70, 130, 180)))
MASK = np.random.default_rng(3).integers(0, 3, (64, 96), np.uint8)


def test_a_lossless_picture_keeps_every_class() -> None:
    """What the JPEG loses must be the JPEG's: with PNG in its place nothing is lost, in red, green and blue."""
    _, data = cv2.imencode(".png", palette_of(LABELS)[MASK])
    found = kept(data.tobytes(), MASK, LABELS)
    assert (found.exact, found.nearest) == (1.0, 1.0)


def test_jpeg_changes_classes() -> None:
    """This is the flaw that the figure is to show: where classes meet, colours mix, and some become another class."""
    found = kept(painted(MASK, palette_of(LABELS)), MASK, LABELS)
    assert found.exact < 0.5
    assert found.exact < found.nearest < 1.0


def test_every_class_id_has_a_colour() -> None:
    """A mask may hold any id: a shorter table would end the callback with an error."""
    palette = palette_of(LABELS)
    assert palette.shape == (256, 3)
    assert palette[1].tolist() == [142, 0, 0]  # OpenCV's order.
    assert not palette[3:].any()
    assert painted(np.full((8, 8), 255, np.uint8), palette)[:2] == b"\xff\xd8"


@pytest.mark.parametrize("class_id", [0, 1, 2])
def test_a_mask_of_one_class_is_recognised(class_id: int) -> None:
    """Far from any edge the original's way back does work: the figure must not be worse than the method is."""
    mask = np.full((64, 96), class_id, np.uint8)
    assert kept(painted(mask, palette_of(LABELS)), mask, LABELS).nearest == 1.0
