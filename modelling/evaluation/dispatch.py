"""Evaluates a model of any task on a bag."""

from pathlib import Path

from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings
from modelling.evaluation.classification import ClassificationEvaluation, evaluate_classification
from modelling.evaluation.detection import DetectionEvaluation, evaluate_detection
from modelling.evaluation.segmentation import SegmentationEvaluation, evaluate_segmentation
from shared.inference.model import Model

Evaluation = SegmentationEvaluation | DetectionEvaluation | ClassificationEvaluation


def evaluate_model(model: Model, bag: Path, settings: EvaluationSettings) -> Evaluation:
    """Evaluates a model on a bag.

    Raises:
        SkylaneError: the bag has no ground truth for such a model.
    """
    if settings.map_file is not None and model.card.task != "segmentation":
        raise EvaluationError(
            f"--map is for the classes of a segmentation, and {model.card.name} is a {model.card.task}: leave it out"
        )
    match model.card.task:
        case "classification":
            return evaluate_classification(model, bag, settings)
        case "tensors":
            raise EvaluationError(f"{model.card.name} gives raw tensors: a bag has no ground truth for them")
        case task if settings.truth is not None:
            raise EvaluationError(f"--truth is for a classifier, and {model.card.name} is a {task}: leave it out")
        case "detection":
            return evaluate_detection(model, bag, settings)
        case _:
            return evaluate_segmentation(model, bag, settings)
