"""Segmentation: the class id of every pixel, in the size of the model's input or of the frame; received masks are checked."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging import image_codecs
from shared.imaging.codec import MASK_CODECS, Mask
from shared.imaging.geometry import UNSEEN, Geometry, to_source
from shared.imaging.image_files import ImageArray
from shared.imaging.labels import MAX_MASK_LABELS, Labels, overlay
from shared.messages.frame import FrameMessage
from shared.messages.results import check_class
from shared.task import CONFIDENCE_HEAD, Confidence, ConfidenceError, Head, calibrated_softmax
from shared.tasks.drawing import draw_legend

SURE_PIXEL = 0.8  # Probability of a pixel's class from which the pixel counts as certain.
_UNSEEN = "unseen"  # Name of the pixels that the model did not see, in a mask of the frame's size.


class SegmentationTask:
    """A result is a mask, uint8 H×W, encoded by `shared.imaging.image_codecs`."""

    result_name = "mask"
    codecs = MASK_CODECS
    has_shape = True
    sinks = ("png",)
    labels = (1, MAX_MASK_LABELS)
    heads: ClassVar[dict[str, Head]] = {
        "mask": Head(("class_ids", "scores", "logits", "probabilities"), "uint8", ("height", "width"))
    }
    optional_heads: ClassVar[dict[str, Head]] = {}
    settings = ()
    comparison = "labels: pixels with the same class; truth: mean IoU against the bag's labels"

    def result(self, outputs: Mapping[str, Any], message: FrameMessage, _manifest: Any) -> Mask:
        """Returns the mask in the requested size; pixels of the frame that the model did not see are UNSEEN."""
        mask: Mask = outputs["mask"]
        return to_source(mask, message.geometry, UNSEEN) if message.options.size == "frame" else mask

    def encode(self, result: Mask, codec: str) -> Buffer:
        """See Task."""
        return image_codecs.encode_mask(result, codec)

    def decode(
        self,
        data: Buffer,
        codec: str,
        shape: tuple[int, int] | None,
        geometry: Geometry | None = None,
        labels: int = MAX_MASK_LABELS,
    ) -> Mask:
        """See Task. `geometry` is used to check the size, before memory is allocated; None: any size is accepted."""
        if shape is None:
            raise SkylaneError("the mask has no height and width: send its shape")
        if geometry is not None and shape not in (
            (geometry.target_height, geometry.target_width),
            (geometry.source_height, geometry.source_width),
        ):
            raise SkylaneError(f"{shape[0]}×{shape[1]} is the size of neither the frame nor the model's input")
        mask = image_codecs.decode_mask(data, codec, shape)
        highest = int(mask.max())
        if highest == UNSEEN and geometry is not None and shape == (geometry.source_height, geometry.source_width):
            highest = int(mask.max(where=mask != UNSEEN, initial=0))
        check_class(highest, labels)
        return mask

    def draw(self, rgb: ImageArray, result: Mask, labels: Labels, _geometry: Any, opacity: float) -> ImageArray:
        """Blends a mask of the image's size with the image, and adds a legend of its classes."""
        return draw_legend(overlay(rgb, result, labels, opacity), result, labels)

    def json_fields(self, result: Mask, _geometry: Any, labels: Labels) -> dict[str, Any]:
        """Returns `classes`, the share of the mask's pixels by class."""
        class_ids, counts = np.unique(result, return_counts=True)
        shares = {
            _UNSEEN if class_id == UNSEEN >= len(labels.names) else labels.name_of(class_id): count / result.size
            for class_id, count in zip(class_ids.tolist(), counts.tolist(), strict=True)
        }
        return {"classes": shares}

    def agreement(self, reference: Mapping[str, Any], given: Mapping[str, Any], _manifest: Any) -> float:
        """Returns the share of pixels with the same class."""
        return float(np.mean(reference["mask"] == given["mask"]))

    def confidence(self, outputs: Mapping[str, Any], _manifest: Any, temperature: float) -> Confidence:
        """Returns the share of pixels whose class has a probability of at least SURE_PIXEL.

        Raises:
            ConfidenceError: the outputs have no scores per class.
        """
        if CONFIDENCE_HEAD not in outputs:
            raise ConfidenceError(
                f"the model has no output {CONFIDENCE_HEAD}, so its masks have no confidence: name its output of scores "
                "per class by the key confidence of model.yaml (skylane model inspect --confidence NAME writes it), or "
                "choose a model that has one"
            )
        highest = calibrated_softmax(outputs[CONFIDENCE_HEAD], temperature).max(axis=-1)
        return Confidence(np.array([np.mean(highest >= SURE_PIXEL)], np.float32), two_sided=False)
