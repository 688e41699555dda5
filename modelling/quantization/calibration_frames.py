"""Frames for quantisation: some to calibrate with, others to measure the loss of accuracy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelling.evaluation.segmentation import prepared
from modelling.training.dataset import (
    HELD_OUT_WEATHER,
    TRAINING_WEATHERS,
    TrainingView,
    generator,
    rendered_view,
    training_views,
    validation_views,
)
from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Geometry, Resize, plan
from shared.messages.model_card import ModelCard

_VIEWS_PER_DRIVE = 2

Image = npt.NDArray[np.uint8]  # H×W×3 in the model's size and channel order.


class CalibrationError(SkylaneError):
    """A bag has too few frames to quantise a model."""


@dataclass(frozen=True, slots=True)
class HoldoutFrame:
    """A frame that is not used for calibration."""

    image: Image
    truth: npt.NDArray[np.uint8] | None = None  # The true class ids in the camera's size, if known.
    geometry: Geometry | None = None  # The mapping from the camera's size to the image's, if there is a truth.


@dataclass(frozen=True, slots=True)
class CalibrationFrames:
    """The images to calibrate with, and the frames to compare the models on."""

    calibration: Sequence[Image]
    holdout: Sequence[HoldoutFrame]


def synthetic_frames(card: ModelCard, count: int, holdout: int) -> CalibrationFrames:
    """Renders `count` frames of training drives and `holdout` frames of drives that no model was trained on."""
    weathers = (*TRAINING_WEATHERS, HELD_OUT_WEATHER)
    return CalibrationFrames(
        [each.image for each in _rendered(card, training_views(count, _VIEWS_PER_DRIVE))],
        list(_rendered(card, validation_views(holdout, weathers, _VIEWS_PER_DRIVE))),
    )


def bag_frames(card: ModelCard, bag: Path, count: int, holdout: int) -> CalibrationFrames:
    """Reads the first `count` frames of a bag, and at most `holdout` frames after them.

    Raises:
        CalibrationError: the bag has no frame after the first `count`.
        SkylaneError: the bag cannot be read.
    """
    source = BagSource(bag)
    try:
        frames = (each for each in source.frames() if isinstance(each, Frame))
        images = [prepared(each.pixels, each.layout, card, "binning")[0] for each in islice(frames, count + holdout)]
    finally:
        source.close()
    if len(images) <= count:
        raise CalibrationError(
            f"{bag} holds {len(images)} readable frames: more than --frames {count} are needed, "
            "because the loss is measured on other frames"
        )
    return CalibrationFrames(images[:count], [HoldoutFrame(image) for image in images[count:]])


def _rendered(card: ModelCard, views: Sequence[TrainingView]) -> Iterator[HoldoutFrame]:
    for view in views:
        scene, rgb = rendered_view(view, card.height, card.width, generator(view))
        rows, columns = scene.class_ids.shape
        geometry = plan(Resize.CROP, rows, columns, card.height, card.width)
        image = rgb if card.layout is Layout.RGB8 else np.ascontiguousarray(rgb[..., ::-1])
        yield HoldoutFrame(image, scene.class_ids, geometry)
