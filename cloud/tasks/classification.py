"""Classification: the most probable classes of a frame."""

import numpy as np

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from shared.messages.frame import FrameMessage
from shared.messages.results import Classification, Result


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:
    """As many classes as the message wants, or the manifest says, the best first; of equal ones the lowest id first."""
    scores = outputs["scores"]  # float32 C
    best = np.argsort(-scores, kind="stable")[: message.options.top_k or manifest.top_k]
    return Classification(tuple(best.tolist()), tuple(scores[best].tolist()))
