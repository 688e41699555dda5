"""Renders the model's input with its result drawn on it, and writes images, for the sinks of images and videos."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from edge.sinks.sink import FrameResult, SinkError
from shared.errors import unwritable_message
from shared.files import write_file
from shared.imaging.codec import Mask
from shared.imaging.geometry import UNSEEN
from shared.imaging.image_files import ImageArray
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.task import task_named
from shared.tasks.drawing import LEGIBLE_WIDTH


def input_image(frame: FrameResult) -> ImageArray:
    """Returns the model's input in the size for drawing: that of the mask, or large enough for legible text."""
    height, width = frame.image.shape[:2]
    if isinstance(frame.result, np.ndarray):
        mask = input_mask(frame)
        return resized(frame.image, mask.shape[1], mask.shape[0])
    factor = max(1.0, LEGIBLE_WIDTH / width)
    return resized(frame.image, round(width * factor), round(height * factor))


def draw_result(image: ImageArray, frame: FrameResult, card: ModelCard, opacity: float) -> Any:
    """Returns a copy of an RGB image, the model's input at any scale, with the result drawn on it."""
    result: Any = frame.result
    if isinstance(result, np.ndarray):
        mask = input_mask(frame)
        result = cv2.resize(mask, image.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    return task_named(card.task).draw(image, result, card.labels, frame.geometry, opacity)


def resized(image: ImageArray, width: int, height: int) -> ImageArray:
    """Returns an image in another size; the same object if it has that size."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = width <= image.shape[1] and height <= image.shape[0]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, (width, height), interpolation=interpolation), np.uint8)


def input_mask(frame: FrameResult) -> Mask:
    """Returns a frame's mask; crops and pads one of the frame's size like the model's input."""
    mask: Mask = frame.result
    plan = frame.geometry
    source = (plan.source_height, plan.source_width)
    if mask.shape != source or source == (plan.target_height, plan.target_width):
        return mask
    cropped = mask[plan.crop_top : plan.crop_top + plan.crop_height, plan.crop_left : plan.crop_left + plan.crop_width]
    scaled = cv2.resize(cropped, (plan.paste_width, plan.paste_height), interpolation=cv2.INTER_NEAREST_EXACT)
    padded = np.full((plan.target_height, plan.target_width), UNSEEN, np.uint8)
    rows = slice(plan.paste_top, plan.paste_top + plan.paste_height)
    padded[rows, plan.paste_left : plan.paste_left + plan.paste_width] = scaled
    return padded


def check_new(path: Path) -> None:
    """Checks that a sink would not replace a file.

    Raises:
        SinkError: the file exists.
    """
    if os.path.lexists(path):
        raise SinkError(f"{path} exists already: choose another --out")


def write_sink_file(root: Path, name: str, data: bytes) -> None:
    """Writes a file into the folder of a sink; `name` may have folders.

    Raises:
        SinkError: the file cannot be written.
    """
    try:
        write_file(root / name, data, root)
    except OSError as error:
        raise write_error(root / name, error) from error


def write_image(root: Path, name: str, image: Any, *parameters: int) -> None:
    """Writes an image in the format of the file name's suffix.

    Args:
        root: The folder of the sink.
        name: Name of the file; it may have folders.
        image: H×W, or H×W×3 uint8 in RGB order.
        parameters: Parameters of `cv2.imencode`.

    Raises:
        SinkError: the file cannot be written.
    """
    stored = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if image.ndim == 3 else image  # H×W×3
    is_encoded, data = cv2.imencode(Path(name).suffix, stored, parameters)
    assert is_encoded
    write_sink_file(root, name, data.tobytes())


def write_error(path: Path, error: Exception) -> SinkError:
    """Returns the sink error for a file that cannot be written."""
    if isinstance(error, OSError):
        return SinkError(unwritable_message(path, error, "--out"))
    return SinkError(f"{path} cannot be written: {error}")
