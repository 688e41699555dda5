"""Segmentation: the class id of every pixel, in the size of the model's input or of the frame."""

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from shared.imaging.geometry import UNSEEN, to_source
from shared.messages.frame import FrameMessage
from shared.messages.results import Result


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:  # noqa: ARG001 - as every task.
    """Returns the mask, uint8 H×W."""
    mask = outputs["mask"]
    return to_source(mask, message.geometry, UNSEEN) if message.options.size == "frame" else mask
