"""The view of a frame: the picture that the model saw with its result drawn on it, for those sinks that show one."""

from typing import Any

import numpy as np

from edge.sinks.sink import Answered
from shared.drawing import LEGIBLE_WIDTH, draw
from shared.model_card import ModelCard
from shared.opencv import cv2
from shared.pictures import Picture, stamp_untrained


def seen(answered: Answered) -> Picture:
    """The picture at the size to draw on: a mask's own; elsewhere the model's input, large enough to read text on."""
    width = answered.picture.shape[1]
    if isinstance(answered.result, np.ndarray):
        return scaled(answered.picture, answered.result.shape[1], answered.result.shape[0])
    factor = max(1.0, LEGIBLE_WIDTH / width)
    return scaled(answered.picture, round(width * factor), round(answered.picture.shape[0] * factor))


def view(picture: Picture, answered: Answered, card: ModelCard, opacity: float) -> Picture:
    """The result drawn on a picture of any scale of what the model saw, RGB."""
    result: Any = answered.result
    if isinstance(result, np.ndarray):
        result = cv2.resize(result, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
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
