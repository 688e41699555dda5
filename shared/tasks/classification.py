"""Classification: the most probable classes of a frame."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.image_files import ImageArray
from shared.imaging.labels import MAX_LABELS, Labels
from shared.messages import tensors
from shared.messages.frame import FrameMessage
from shared.messages.results import Classification, array_of, check_scored
from shared.task import Confidence, Head, calibrated_softmax, log_probabilities
from shared.tasks.drawing import draw_bars


class ClassificationTask:
    """A result is a `Classification`, encoded as the arrays `class_ids` (uint16, k) and `scores` (float32, k)."""

    result_name = "classification"
    codecs = tensors.TENSOR_CODECS
    has_shape = False
    sinks = ("jsonl", "overlay")
    labels = (1, MAX_LABELS)
    heads: ClassVar[dict[str, Head]] = {"scores": Head(("logits", "probabilities"), "float32", ("labels",))}
    optional_heads: ClassVar[dict[str, Head]] = {}
    settings = ("top_k",)
    comparison = "labels: frames with the same class; off by: largest difference of a probability; truth: accuracy"

    def result(self, outputs: Mapping[str, Any], message: FrameMessage, manifest: Any) -> Classification:
        """Returns the classes with the highest scores, best first; equal scores are sorted by class id.

        Their number is that in the message, by default that in the manifest.
        """
        scores = outputs["scores"]  # float32 C
        best = np.argsort(-scores, kind="stable")[: message.options.top_k or manifest.top_k]
        return Classification(tuple(best.tolist()), tuple(scores[best].tolist()))

    def encode(self, result: Classification, codec: str) -> Buffer:
        """See Task."""
        scores = np.array(result.scores, np.float32)
        return tensors.encode({"class_ids": np.array(result.class_ids, np.uint16), "scores": scores}, codec)

    def decode(
        self, data: Buffer, codec: str, _shape: Any, _geometry: Any = None, labels: int = MAX_LABELS
    ) -> Classification:
        """See Task."""
        arrays = tensors.decode(data, codec)
        class_ids, scores = array_of(arrays, "class_ids", "uint16"), array_of(arrays, "scores", "float32")
        check_scored(class_ids, scores, MAX_LABELS, labels)
        if len(np.unique(class_ids)) != len(class_ids) or not len(class_ids):
            raise SkylaneError("a classification must have at least one class, and each class once")
        return Classification(tuple(class_ids.tolist()), tuple(scores.tolist()))

    def draw(
        self, rgb: ImageArray, result: Classification, labels: Labels, _geometry: Any, _opacity: float
    ) -> ImageArray:
        """Draws a bar chart."""
        return draw_bars(rgb, result, labels)

    def json_fields(self, result: Classification, _geometry: Any, labels: Labels) -> dict[str, Any]:
        """Returns `classes` with name, id and score, the best first."""
        scored = zip(result.class_ids, result.scores, strict=True)
        return {"classes": [labels.scored(class_id, score) for class_id, score in scored]}

    def agreement(self, reference: Mapping[str, Any], given: Mapping[str, Any], _manifest: Any) -> float:
        """Returns the share of images with the same most probable class."""
        return float(np.mean(reference["scores"].argmax(axis=1) == given["scores"].argmax(axis=1)))

    def confidence(self, outputs: Mapping[str, Any], _manifest: Any, temperature: float) -> Confidence:
        """Returns the probability of the second of two labels; of more labels, the highest probability."""
        probabilities = calibrated_softmax(log_probabilities(outputs["scores"]), temperature)
        two_labels = len(probabilities) == 2
        return Confidence(probabilities[1:] if two_labels else probabilities.max(keepdims=True), two_sided=two_labels)
