"""What a task does, the table of them, and what a vehicle may wish of each."""

from collections.abc import Callable

from cloud.engines.engine import Outputs
from cloud.manifest import Manifest
from cloud.tasks import classification, detection, segmentation, tensors
from shared import results
from shared.fields import MessageError
from shared.messages import FrameMessage, Want
from shared.model_card import ModelCard, Task
from shared.results import Result

# From one frame's outputs (by head, without the batch) to what its message wants.
MakeResult = Callable[[Outputs, FrameMessage, Manifest], Result]

TASKS: dict[Task, MakeResult] = {
    Task.SEGMENTATION: segmentation.result,
    Task.CLASSIFICATION: classification.result,
    Task.DETECTION: detection.result,
    Task.TENSORS: tensors.result,
}


def check(want: Want, card: ModelCard) -> None:
    """Whether a model can answer as a vehicle wishes; asked before anything is decoded or inferred.

    Raises:
        MessageError: its results are not packed so, or it has no such outputs; the message names what there is.
    """
    codecs = results.codecs(card.task)
    if want.mask_codec not in codecs:
        raise MessageError(f"no {results.noun(card.task)} codec {want.mask_codec[:40]!r}: ask for {', '.join(codecs)}")
    unknown = [name for name in want.outputs if name not in card.outputs]
    if unknown:
        there = (
            f"ask for {', '.join(card.outputs)}"
            if card.outputs
            else "a model of raw tensors alone has some to choose from"
        )
        raise MessageError(f"model {card.name} has no output {', '.join(unknown)[:200]}: {there}")
