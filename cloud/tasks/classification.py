"""Classification: the most probable classes of a frame."""

import numpy as np

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from shared.messages.frame import FrameMessage
from shared.messages.results import Classification, Result


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:
    """Returns the classes with the highest scores, best first; equal scores are sorted by class id.

    Their number is that in the message, by default that in the manifest.
    """
    scores = outputs["scores"]  # float32 C
    best = np.argsort(-scores, kind="stable")[: message.options.top_k or manifest.top_k]
    return Classification(tuple(best.tolist()), tuple(scores[best].tolist()))
