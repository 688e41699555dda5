"""The truth of the frames that both models are recorded on."""

import numpy as np

from modelling.fusion.recording import labels_in_input
from shared.imaging.geometry import UNSEEN, Resize, plan


def test_labels_follow_the_crop_of_the_image() -> None:
    """A true class belongs to the same place as the pixel of the model's input; padding has none."""
    class_ids = np.arange(32, dtype=np.uint8).reshape(4, 8)
    cropped = labels_in_input(class_ids, plan(Resize.CROP, 4, 8, 2, 2))
    assert cropped.tolist() == class_ids[::2, 2:6:2].tolist()
    padded = labels_in_input(class_ids, plan(Resize.LETTERBOX, 4, 8, 4, 4))
    assert padded[1:3].tolist() == class_ids[::2, ::2].tolist()
    assert (padded[[0, 3]] == UNSEEN).all()
