"""The vehicle's own model on the image of a tick."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.presenter import Tick
from edge.reuse.local_answers import scaled_mask
from edge.reuse.local_model import LocalModel
from shared.imaging import boxes, geometry
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, Resize
from shared.imaging.image_files import ImageArray
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections
from shared.task import CONFIDENCE_HEAD, calibrated_softmax
from shared.tasks.detection import objects

_SOFTENING = 2.0  # Divides the scores, so that 8 bits resolve small probabilities.


@dataclass(frozen=True, slots=True)
class LocalOutput:
    """The local model's result for a tick, in the form of the reference model's."""

    result: Any  # The type that the task of the model decodes.
    # h×w×C, 255 times the softened probability of each class; h×w is the size of the model's scores. None: no scores.
    probabilities: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class LocalResults:
    """Returns the local model's output for a tick; None if the model failed or is paused."""

    model: LocalModel

    def __call__(self, tick: Tick) -> LocalOutput | None:
        """Runs the model."""
        if not self.model.is_on:
            return None
        model = self.model.model
        outputs = self.model.infer(local_input(tick.image, model.card))
        return None if outputs is None else local_output(outputs, tick.geometry, model)

    def problem(self) -> str:
        """Returns why the model gave no output; empty if it never failed."""
        return f"local model: {self.model.pause_reason}" if self.model.pause_reason else ""


def local_input(image: ImageArray, card: ModelCard) -> ImageArray:
    """Returns the reference model's input, RGB, as the input of the local model with the given card."""
    height, width = image.shape[:2]
    resized = np.asarray(geometry.apply(image, _from_input(height, width, card.height, card.width)), np.uint8)
    return resized[..., ::-1] if card.layout is Layout.BGR8 else resized


def local_output(outputs: Mapping[str, Any], plan: Geometry, model: Model) -> LocalOutput:
    """Makes the output for a tick from the local model's outputs for one image.

    `plan`: the geometry of the reference model's input. Scores that are not one for each class are not used.
    """
    height, width = plan.target_height, plan.target_width
    if "mask" in outputs:
        scores: Any = outputs.get(CONFIDENCE_HEAD)
        has_scores = scores is not None and scores.shape[-1] == len(model.card.labels.names)
        probabilities = _as_bytes(calibrated_softmax(scores, _SOFTENING)) if has_scores else None
        return LocalOutput(scaled_mask(outputs["mask"], height, width), probabilities)
    found = objects(outputs, _from_input(height, width, model.card.height, model.card.width), model.manifest)
    return LocalOutput(Detections(boxes.to_source(found.boxes, plan), found.class_ids, found.scores))


def _from_input(height: int, width: int, own_height: int, own_width: int) -> Geometry:
    return geometry.plan(Resize.STRETCH, height, width, own_height, own_width)


def _as_bytes(probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.asarray(probabilities * 255 + 0.5, np.uint8)
