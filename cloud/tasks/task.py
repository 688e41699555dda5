"""What a task does, and the table of them."""

from collections.abc import Callable

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from cloud.tasks import classification, detection, segmentation, tensors
from shared.messages.frame import FrameMessage
from shared.messages.model_card import Task
from shared.messages.results import Result

# From one frame's outputs (by head, without the batch) to what its message wants.
MakeResult = Callable[[Outputs, FrameMessage, Manifest], Result]

TASKS: dict[Task, MakeResult] = {
    Task.SEGMENTATION: segmentation.result,
    Task.CLASSIFICATION: classification.result,
    Task.DETECTION: detection.result,
    Task.TENSORS: tensors.result,
}
