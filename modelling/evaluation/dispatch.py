"""Evaluates a model of any task on a bag."""

from collections.abc import Callable
from pathlib import Path

from cloud.models.model import Model
from modelling.evaluation.classification import ClassificationEvaluation, evaluate_classification
from modelling.evaluation.detection import DetectionEvaluation, evaluate_detection
from modelling.evaluation.segmentation import EvaluationError, SegmentationEvaluation, evaluate_segmentation

Evaluation = SegmentationEvaluation | DetectionEvaluation | ClassificationEvaluation


def evaluate_model(
    model: Model,
    bag: Path,
    *,
    truth: str | None,
    camera: str | None,
    frames: int | None,
    demosaic: str,
    on_frame: Callable[[int, int | None], None],
) -> Evaluation:
    """Evaluates a model on a bag.

    `truth` is the class of all frames, for a classifier; `evaluate_segmentation` explains the other parameters.

    Raises:
        SkylaneError: the bag has no ground truth for such a model.
    """
    match model.card.task:
        case "classification":
            return evaluate_classification(
                model, bag, truth, camera=camera, frames=frames, demosaic=demosaic, on_frame=on_frame
            )
        case "tensors":
            raise EvaluationError(f"{model.card.name} gives raw tensors: a bag has no ground truth for them")
        case task if truth is not None:
            raise EvaluationError(f"--truth is for a classifier, and {model.card.name} is a {task}: leave it out")
        case "detection":
            return evaluate_detection(model, bag, camera=camera, frames=frames, demosaic=demosaic, on_frame=on_frame)
        case _:
            return evaluate_segmentation(model, bag, camera=camera, frames=frames, demosaic=demosaic, on_frame=on_frame)
