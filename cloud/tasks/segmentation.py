"""Segmentation: class ids of every pixel, of the model's input or laid back onto the frame."""

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from shared.imaging.geometry import UNSEEN, to_source
from shared.messages.frame import FrameMessage
from shared.messages.results import Result


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:  # noqa: ARG001 - as every task.
    """The mask, H×W uint8."""
    mask = outputs["mask"]
    return to_source(mask, message.geometry, UNSEEN) if message.want.size == "frame" else mask
