import cv2
import numpy as np
import pytest

from bench.baselines.images import compare_mask, encode_mask, palette_of
from shared.imaging.labels import Labels

LABELS = Labels(("road", "car", "sky"), ((128, 64, 128), (0, 0, 142), (70, 130, 180)))
MASK = np.random.default_rng(3).integers(0, 3, (64, 96), np.uint8)


def test_a_lossless_image_keeps_every_class() -> None:
    """Only JPEG may cause losses, not the palette or the order of colours."""
    _, data = cv2.imencode(".png", palette_of(LABELS)[MASK])
    found = compare_mask(data.tobytes(), MASK, LABELS)
    assert (found.exact, found.nearest) == (1.0, 1.0)


def test_jpeg_changes_classes() -> None:
    """Colours mix where classes meet, and some pixels are taken for another class."""
    found = compare_mask(encode_mask(MASK, palette_of(LABELS)), MASK, LABELS)
    assert found.exact < 0.5
    assert found.exact < found.nearest < 1.0


def test_every_class_id_has_a_colour() -> None:
    """A mask may contain any id; a shorter table would raise in the callback."""
    palette = palette_of(LABELS)
    assert palette.shape == (256, 3)
    assert palette[1].tolist() == [142, 0, 0]  # OpenCV's order.
    assert not palette[3:].any()
    assert encode_mask(np.full((8, 8), 255, np.uint8), palette)[:2] == b"\xff\xd8"


@pytest.mark.parametrize("class_id", [0, 1, 2])
def test_a_mask_of_one_class_is_recovered(class_id: int) -> None:
    """Without edges, the original's encoding keeps the class."""
    mask = np.full((64, 96), class_id, np.uint8)
    assert compare_mask(encode_mask(mask, palette_of(LABELS)), mask, LABELS).nearest == 1.0
