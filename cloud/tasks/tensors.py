"""Raw tensors: all outputs of the model, or the requested ones."""

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from shared.messages.frame import FrameMessage
from shared.messages.results import Result, Tensors


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:
    """Returns the outputs in the order of the message; if it names none, all in the order of the manifest."""
    return Tensors({name: outputs[name] for name in message.options.outputs or manifest.heads})
