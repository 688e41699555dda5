"""The view of a frame: the picture that the model saw with its result drawn on it, for those sinks that show one."""

from typing import Any

import numpy as np

from edge.sinks.sink import FrameResult
from shared.imaging.drawing import LEGIBLE_WIDTH, draw
from shared.imaging.geometry import UNSEEN, Geometry
from shared.imaging.image_files import Picture, stamp_untrained
from shared.imaging.mask_codecs import Mask
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard


def seen(answered: FrameResult) -> Picture:
    """The picture at the size to draw on: of a mask its own, elsewhere large enough to read text on."""
    height, width = answered.picture.shape[:2]
    if isinstance(answered.result, np.ndarray):
        mask = _as_seen(answered.result, answered.geometry)
        return scaled(answered.picture, mask.shape[1], mask.shape[0])
    factor = max(1.0, LEGIBLE_WIDTH / width)
    return scaled(answered.picture, round(width * factor), round(height * factor))


def view(picture: Picture, answered: FrameResult, card: ModelCard, opacity: float) -> Picture:
    """The result drawn on a picture of any scale of what the model saw, RGB."""
    result: Any = answered.result
    if isinstance(result, np.ndarray):
        mask = _as_seen(result, answered.geometry)
        result = cv2.resize(mask, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    return draw(picture, result, card.labels, answered.geometry, opacity)


def told(picture: Picture, card: ModelCard) -> Picture:
    """A picture that says so where its model's weights are random: it is passed on without its run."""
    return picture if card.trained else stamp_untrained(picture)


def scaled(picture: Picture, width: int, height: int) -> Picture:
    """A picture of another size; itself where it has that size."""
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = width <= picture.shape[1] and height <= picture.shape[0]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(picture, (width, height), interpolation=interpolation), np.uint8)


def _as_seen(mask: Mask, made: Geometry) -> Mask:
    """A mask of the frame's size, cut to what the model saw and padded where it saw padding; any other as it is."""
    source = (made.source_height, made.source_width)
    if mask.shape != source or source == (made.target_height, made.target_width):
        return mask
    cropped = mask[made.crop_top : made.crop_top + made.crop_height, made.crop_left : made.crop_left + made.crop_width]
    seen_part = cv2.resize(cropped, (made.paste_width, made.paste_height), interpolation=cv2.INTER_NEAREST_EXACT)
    whole = np.full((made.target_height, made.target_width), UNSEEN, np.uint8)
    whole[made.paste_top : made.paste_top + made.paste_height, made.paste_left : made.paste_left + made.paste_width] = (
        seen_part
    )
    return whole
