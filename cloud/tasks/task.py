"""The contract of a task, and the table of all tasks."""

from collections.abc import Callable

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from cloud.tasks import classification, detection, segmentation, tensors
from shared.messages.frame import FrameMessage
from shared.messages.model_card import Task
from shared.messages.results import Result

# Makes the requested result from the outputs of one frame, by name and without the batch dimension.
MakeResult = Callable[[Outputs, FrameMessage, Manifest], Result]

TASKS: dict[Task, MakeResult] = {
    Task.SEGMENTATION: segmentation.result,
    Task.CLASSIFICATION: classification.result,
    Task.DETECTION: detection.result,
    Task.TENSORS: tensors.result,
}
