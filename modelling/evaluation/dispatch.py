"""Evaluation of a model on a bag, whatever its task is."""

from collections.abc import Callable
from pathlib import Path

from cloud.models.model import Model
from modelling.evaluation.classification import ClassificationEvaluation, evaluate_classification
from modelling.evaluation.detection import DetectionEvaluation, evaluate_detection
from modelling.evaluation.segmentation import Evaluation, EvaluationError, evaluate
from shared.messages.model_card import Task


def judged(
    model: Model,
    bag: Path,
    *,
    truth: str | None,
    camera: str | None,
    frames: int | None,
    demosaic: str,
    on_frame: Callable[[int, int | None], None],
) -> Evaluation | DetectionEvaluation | ClassificationEvaluation:
    """The figures of a model on a bag; `truth`: what all frames are, for a classifier; the rest as in `evaluate`.

    Raises:
        SkylaneError: the bag has nothing to judge such a model by.
    """
    match model.card.task:
        case Task.CLASSIFICATION:
            return evaluate_classification(
                model, bag, truth, camera=camera, frames=frames, demosaic=demosaic, on_frame=on_frame
            )
        case Task.TENSORS:
            raise EvaluationError(
                f"{model.card.name} gives raw tensors: a bag has nothing that they could be held against"
            )
        case task if truth is not None:
            raise EvaluationError(f"--truth is for a classifier, and {model.card.name} is a {task}: leave it out")
        case Task.DETECTION:
            return evaluate_detection(model, bag, camera=camera, frames=frames, demosaic=demosaic, on_frame=on_frame)
        case _:
            return evaluate(model, bag, camera=camera, frames=frames, demosaic=demosaic, on_frame=on_frame)
