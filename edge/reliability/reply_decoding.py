"""Decodes the result in a reply, and checks that it fits its frame."""

from typing import Any

from edge.reliability.ledger import FrameRecord
from shared.errors import SkylaneError
from shared.messages.frame import ResultMessage, Status
from shared.tasks.task import task_named


def decode_result(message: ResultMessage, record: FrameRecord, task: str) -> tuple[Any, str]:
    """Returns the result in a reply, or None and the problem with it. `task`: the task of the requested model.

    A reply without a result, because the worker refused the frame, is no problem: both are empty then.
    """
    if message.status is not Status.ANSWERED:
        return None, ""
    plug_in = task_named(task)
    if message.task != task:
        return None, f"{plug_in.result_name} cannot be used: its model answers a {message.task}"
    try:
        return plug_in.decode(message.data, message.codec, message.shape, record.geometry), ""
    except SkylaneError as error:
        return None, f"{plug_in.result_name} cannot be used: {error}"
