"""Decodes the result in a reply, and checks that it fits its frame."""

from edge.reliability.ledger import FrameRecord
from shared.errors import SkylaneError
from shared.messages import results
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import Task
from shared.messages.results import Detections, Result


def decode_result(message: ResultMessage, record: FrameRecord, task: Task) -> tuple[Result | None, str]:
    """Returns the result in a reply, or None and the problem with it. `task`: the task of the requested model.

    A reply without a result, because the worker refused the frame, is no problem: both are empty then.
    """
    if message.status is not Status.ANSWERED:
        return None, ""
    problem = _mismatch(message, record, task)
    if problem:
        return None, f"{results.result_name(task)} cannot be used: {problem}"
    try:
        result = results.decode(task, message.data, message.codec, message.shape)
    except SkylaneError as error:
        return None, f"{results.result_name(task)} cannot be used: {error}"
    if isinstance(result, Detections) and not _is_inside_frame(result, record):
        return None, "detection cannot be used: a box reaches over the frame's edge"
    return result, ""


def _mismatch(message: ResultMessage, record: FrameRecord, task: Task) -> str:
    """Returns how the reply's task or mask size contradicts the request; empty if it does not."""
    if message.task is not task:
        return f"its model answers a {message.task}"
    plan = record.geometry
    if task is not Task.SEGMENTATION or plan is None or message.shape is None:
        return ""
    sizes = ((plan.target_height, plan.target_width), (plan.source_height, plan.source_width))
    if message.shape in sizes:
        return ""
    return f"{message.shape[0]}×{message.shape[1]} is the size of neither the frame nor the model's input"


def _is_inside_frame(detections: Detections, record: FrameRecord) -> bool:
    plan = record.geometry
    if plan is None:
        return True
    boxes = detections.boxes
    return bool((boxes >= 0).all() and (boxes[:, 2:] <= (plan.source_width, plan.source_height)).all())
