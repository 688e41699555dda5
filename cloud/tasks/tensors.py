"""Raw tensors: what the model gave, or those of its outputs that were asked for."""

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from shared.messages.frame import FrameMessage
from shared.messages.results import Result, Tensors


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:
    """The outputs that the message wants, in its order; all, in the manifest's, where it names none."""
    return Tensors({name: outputs[name] for name in message.options.outputs or manifest.heads})
