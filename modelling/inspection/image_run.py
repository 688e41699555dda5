"""`skylane model run`: runs a model on one image and writes the result as files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from modelling.evaluation.bag_images import prepared
from shared import clock
from shared.files import new_file
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, Resize, plan
from shared.imaging.image_files import ImageArray, write_png
from shared.imaging.labels import colourise
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.results import Result, Tensors
from shared.messages.topics import FrameId
from shared.task import task_named
from shared.tasks.drawing import mark_untrained

MaskSize = Literal["frame", "model"]

_OPACITY = 0.5


@dataclass(frozen=True, slots=True)
class ImageRun:
    """A model's result for an image; boxes are in pixels of the original image."""

    result: Result
    card: ModelCard
    inference_ms: float


def run(model: Model, rgb: ImageArray) -> ImageRun:
    """Warms up a model and runs it on an image H×W×3, RGB uint8."""
    model.warm_up()
    return predict(model, rgb)


def predict(model: Model, rgb: ImageArray, size: MaskSize = "frame") -> ImageRun:
    """Runs a model on an image.

    Args:
        model: The model.
        rgb: The image, H×W×3, RGB uint8.
        size: Size of a mask: that of the image (`frame`), or of the model's input (`model`).
    """
    image, geometry = prepared(rgb, Layout.RGB8, model.card)
    began_ns = clock.now_ns()
    outputs = model.infer_one(image)
    inference_ms = (clock.now_ns() - began_ns) / 1e6
    result = _result(model, outputs, geometry, size)
    return ImageRun(result, model.card, inference_ms)


def write(image_run: ImageRun, rgb: ImageArray, folder: Path, stem: str) -> list[Path]:
    """Writes the result and returns the paths: an overlay, for a mask also its class ids and colours; tensors as .npz."""
    card, result = image_run.card, image_run.result
    if isinstance(result, Tensors):
        path = folder / f"{stem}_tensors.npz"
        with new_file(path) as file:
            np.savez(file, **result.values)  # type: ignore[arg-type]  # All keywords are arrays.
        return [path]
    identity = plan(Resize.CROP, *rgb.shape[:2], *rgb.shape[:2])
    images = {"overlay": task_named(card.task).draw(rgb, result, card.labels, identity, _OPACITY)}
    ids = folder / f"{stem}_ids.png"
    if isinstance(result, np.ndarray):
        write_png(ids, result)
        images = {"colour": colourise(result, card.labels)} | images
    for kind, image in images.items():
        write_png(folder / f"{stem}_{kind}.png", mark_untrained(image, card))
    paths = [folder / f"{stem}_{kind}.png" for kind in images]
    return [ids, *paths] if isinstance(result, np.ndarray) else paths


def _result(model: Model, outputs: Outputs, geometry: Geometry, size: MaskSize) -> Any:
    card = model.card
    pixels = (card.height, card.width, 3)
    options = RequestOptions(size=size, outputs=tuple(outputs))
    message = FrameMessage(
        FrameId("run", "image", "0", 0), card.name, Layout.RGB8, pixels, "raw", geometry, 0, b"", options=options
    )
    return task_named(card.task).result(outputs, message, model.manifest)
