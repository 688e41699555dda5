"""Results at the vehicle: an answer's data decoded, and held against the frame that it is said to be of."""

from edge.reliability.ledger import FrameRecord
from shared.errors import SkylaneError
from shared.messages import results
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import Task
from shared.messages.results import Detections, Result


def decoded(message: ResultMessage, journey: FrameRecord, task: Task) -> tuple[Result | None, str]:
    """The result of an answer, or why there is none though there should be.

    `task`: what the model's card announced; who asked for boxes cannot use a mask.
    """
    if message.status is not Status.ANSWERED:
        return None, ""
    fault = _misfit(message, journey, task)
    if fault:
        return None, f"{results.noun(task)} cannot be used: {fault}"
    try:
        result = results.decode(task, message.data, message.codec, message.shape)
    except SkylaneError as error:
        return None, f"{results.noun(task)} cannot be used: {error}"
    if isinstance(result, Detections) and not _inside(result, journey):
        return None, "detection cannot be used: a box reaches over the frame's edge"
    return result, ""


def _misfit(message: ResultMessage, journey: FrameRecord, task: Task) -> str:
    """What an answer announces that cannot be true of this frame."""
    if message.task is not task:
        return f"its model answers a {message.task}"
    plan = journey.geometry
    if task is not Task.SEGMENTATION or plan is None or message.shape is None:
        return ""
    sizes = ((plan.target_height, plan.target_width), (plan.source_height, plan.source_width))
    if message.shape in sizes:
        return ""
    return f"{message.shape[0]}×{message.shape[1]} is the size of neither the frame nor the model's input"


def _inside(detections: Detections, journey: FrameRecord) -> bool:
    plan = journey.geometry
    if plan is None:
        return True
    boxes = detections.boxes
    return bool((boxes >= 0).all() and (boxes[:, 2:] <= (plan.source_width, plan.source_height)).all())
