"""`skylane model run`: runs a model on one image and writes the result as files."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloud.engines.engine import Outputs
from cloud.models.model import Model
from cloud.tasks import detection
from modelling.evaluation.segmentation import UNSEEN, prepared
from shared.imaging.drawing import draw
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, Resize, plan, to_source
from shared.imaging.image_files import ImageArray, stamp_untrained, write_png
from shared.imaging.labels import colourise
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Classification, Result, Tensors

_OPACITY = 0.5


@dataclass(frozen=True, slots=True)
class ImageRun:
    """A model's result for an image; masks and boxes are in pixels of the original image."""

    result: Result
    card: ModelCard
    inference_ms: float  # Duration of the inference after a warm-up.


def run(model: Model, rgb: ImageArray) -> ImageRun:
    """Runs a model on an image H×W×3, RGB."""
    image, geometry = prepared(rgb, Layout.RGB8, model.card, "bilinear")
    model.warm_up()
    began_ns = time.perf_counter_ns()
    outputs = model.infer(image[np.newaxis])
    inference_ms = (time.perf_counter_ns() - began_ns) / 1e6
    result = _result(model, {head: values[0] for head, values in outputs.items()}, geometry)
    return ImageRun(result, model.card, inference_ms)


def write(image_run: ImageRun, rgb: ImageArray, folder: Path, stem: str) -> list[Path]:
    """Writes the result and returns the paths: an overlay, for a mask also its class ids and colours; tensors as .npz."""
    card, result = image_run.card, image_run.result
    if isinstance(result, Tensors):
        path = folder / f"{stem}_tensors.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **result.values)  # type: ignore[arg-type]  # All keywords are arrays.
        return [path]
    identity = plan(Resize.CROP, *rgb.shape[:2], *rgb.shape[:2])
    images = {"overlay": draw(rgb, result, card.labels, identity, _OPACITY)}
    ids = folder / f"{stem}_ids.png"
    if isinstance(result, np.ndarray):
        write_png(ids, result)
        images = {"colour": colourise(result, card.labels)} | images
    for kind, image in images.items():
        write_png(folder / f"{stem}_{kind}.png", image if card.trained else stamp_untrained(image))
    paths = [folder / f"{stem}_{kind}.png" for kind in images]
    return [ids, *paths] if isinstance(result, np.ndarray) else paths


def _result(model: Model, outputs: Outputs, geometry: Geometry) -> Result:
    match model.card.task:
        case Task.SEGMENTATION:
            return to_source(outputs["mask"], geometry, UNSEEN)
        case Task.DETECTION:
            return detection.objects(outputs, geometry, model.manifest)
        case Task.CLASSIFICATION:
            best = np.argsort(-outputs["scores"], kind="stable")[: model.manifest.top_k]
            return Classification(tuple(best.tolist()), tuple(outputs["scores"][best].tolist()))
        case Task.TENSORS:
            return Tensors(outputs)
