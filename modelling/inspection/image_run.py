"""One run of a model on one picture, and its result as files."""

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
from shared.imaging.image_files import Picture, stamp_untrained, write_png
from shared.imaging.labels import colourise
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Classification, Result, Tensors

_OPACITY = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """What a model said of a picture: a mask or boxes in the picture's own pixels."""

    result: Result
    card: ModelCard
    took_ms: float  # Of the inference alone, warm.


def run(model: Model, rgb: Picture) -> Trial:
    """Run a model on a picture H×W×3, RGB."""
    image, geometry = prepared(rgb, Layout.RGB8, model.card, "bilinear")
    model.warm_up()
    began_ns = time.perf_counter_ns()
    outputs = model.infer(image[np.newaxis])
    took_ms = (time.perf_counter_ns() - began_ns) / 1e6
    result = _result(model, {head: values[0] for head, values in outputs.items()}, geometry)
    return Trial(result, model.card, took_ms)


def write(trial: Trial, rgb: Picture, folder: Path, stem: str) -> list[Path]:
    """Write a trial's pictures, and return their paths: of a mask its class ids and colours too; of tensors an .npz."""
    card, result = trial.card, trial.result
    if isinstance(result, Tensors):
        path = folder / f"{stem}_tensors.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **result.values)  # type: ignore[arg-type]  # Keywords are arrays here, never its flags.
        return [path]
    unmoved = plan(Resize.CROP, *rgb.shape[:2], *rgb.shape[:2])
    pictures = {"overlay": draw(rgb, result, card.labels, unmoved, _OPACITY)}
    ids = folder / f"{stem}_ids.png"
    if isinstance(result, np.ndarray):
        write_png(ids, result)
        pictures = {"colour": colourise(result, card.labels)} | pictures
    for kind, painted in pictures.items():
        write_png(folder / f"{stem}_{kind}.png", painted if card.trained else stamp_untrained(painted))
    paths = [folder / f"{stem}_{kind}.png" for kind in pictures]
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
