"""The pictures that a model is quantised with, and those that show what it lost: none is in both."""

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
    seen,
    training_views,
    validation_views,
)
from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Geometry, Resize, plan
from shared.messages.model_card import ModelCard

_VIEWS_A_DRIVE = 2

Picture = npt.NDArray[np.uint8]  # H×W×3 of the model's size, in its layout.


class CalibrationError(SkylaneError):
    """Frames that no model can be quantised with."""


@dataclass(frozen=True, slots=True)
class HoldoutFrame:
    """A picture that was not calibrated with. `truth`: uint8 class ids of the camera's size, where they are known."""

    picture: Picture
    truth: npt.NDArray[np.uint8] | None = None
    geometry: Geometry | None = None  # From the camera's size to the picture's, where there is a truth.


@dataclass(frozen=True, slots=True)
class CalibrationFrames:
    """`calibration` H×W×3 each, and `judged`."""

    calibration: Sequence[Picture]
    judged: Sequence[HoldoutFrame]


def synthetic_frames(card: ModelCard, count: int, unseen: int) -> CalibrationFrames:
    """`count` frames of training drives in all training weathers; `unseen` of drives that nothing was trained on."""
    weathers = (*TRAINING_WEATHERS, HELD_OUT_WEATHER)
    return CalibrationFrames(
        [each.picture for each in _rendered(card, training_views(count, _VIEWS_A_DRIVE))],
        list(_rendered(card, validation_views(unseen, weathers, _VIEWS_A_DRIVE))),
    )


def bag_frames(card: ModelCard, bag: Path, count: int, unseen: int) -> CalibrationFrames:
    """The first `count` frames of a bag, and at most `unseen` of those after them.

    Raises:
        CalibrationError: the bag has no frame beyond those to calibrate with.
        SkylaneError: the bag cannot be read.
    """
    source = BagSource(bag)
    try:
        frames = (each for each in source.frames() if isinstance(each, Frame))
        pictures = [prepared(each.pixels, each.layout, card, "binning")[0] for each in islice(frames, count + unseen)]
    finally:
        source.close()
    if len(pictures) <= count:
        raise CalibrationError(
            f"{bag} holds {len(pictures)} frames that can be read: more than --frames {count} are needed, "
            "as what the model lost is seen on others"
        )
    return CalibrationFrames(pictures[:count], [HoldoutFrame(picture) for picture in pictures[count:]])


def _rendered(card: ModelCard, views: Sequence[TrainingView]) -> Iterator[HoldoutFrame]:
    for view in views:
        scene, picture = seen(view, card.height, card.width, generator(view))
        rows, columns = scene.class_ids.shape
        geometry = plan(Resize.CROP, rows, columns, card.height, card.width)
        ours = picture if card.layout is Layout.RGB8 else np.ascontiguousarray(picture[..., ::-1])
        yield HoldoutFrame(ours, scene.class_ids, geometry)
