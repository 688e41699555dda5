"""Decoding of results, and checks that they fit their frame."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edge.receiver import decode_result
from edge.reliability.ledger import FrameRecord
from shared import clock
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import ResultMessage, Status
from shared.messages.results import Classification, Detections, Result, Tensors
from shared.messages.topics import FrameId
from shared.stages import Stage
from shared.tasks.task import TASKS, task_named

MakeReply = Callable[..., ResultMessage]


@pytest.fixture
def record(send: Callable[[FrameRecord], FrameRecord]) -> FrameRecord:
    """A frame of 16×30 pixels, sent to a model of 8×12."""
    started = FrameRecord(FrameId("car", "left", "s1", 0), "/left", 0, 0, 0, 0, {Stage.DUE: clock.now_ns()})
    started.geometry = plan(Resize.CROP, 16, 30, 8, 12)
    return send(started)


def _detections(*boxes: tuple[float, ...]) -> Detections:
    count = len(boxes)
    array = np.array(boxes, np.float32).reshape(count, 4)
    return Detections(array, np.zeros(count, np.uint16), np.full(count, 0.5, np.float32))


RESULTS: dict[str, Result] = {
    "segmentation": np.ones((8, 12), np.uint8),
    "classification": Classification((2, 0), (0.75, 0.25)),
    "detection": _detections((0, 0, 30, 16), (3, 4, 5, 6)),
    "tensors": Tensors({"depth": np.arange(4, dtype=np.float32)}),
}


def _reply(answer: MakeReply, record: FrameRecord, task: str, result: Result) -> ResultMessage:
    shape = (result.shape[0], result.shape[1]) if isinstance(result, np.ndarray) else None
    return answer(record, task=task, shape=shape, data=task_named(task).encode(result, "zstd"))


@pytest.mark.parametrize("task", TASKS)
def test_the_result_of_every_task_is_decoded(record: FrameRecord, answer: MakeReply, task: str) -> None:
    """The result is exactly the one that the worker encoded."""
    expected = RESULTS[task]
    result, fault = decode_result(_reply(answer, record, task, expected), record, task)
    assert fault == ""
    assert result is not None
    assert task_named(task).encode(result, "raw") == task_named(task).encode(expected, "raw")


@pytest.mark.parametrize("task", TASKS)
def test_a_result_of_another_task_is_a_failure(record: FrameRecord, answer: MakeReply, task: str) -> None:
    """The sinks were chosen for the task of the model card."""
    other = "detection" if task == "segmentation" else "segmentation"
    result, fault = decode_result(_reply(answer, record, other, RESULTS[other]), record, task)
    assert result is None
    assert fault == f"{task_named(task).result_name} cannot be used: its model answers a {other}"


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 31, 5), (0, 0, 5, 17), (0, -3, 5, 5)])
def test_a_box_outside_the_frame_is_a_failure(record: FrameRecord, answer: MakeReply, box: tuple[int, ...]) -> None:
    """A program that crops the frame by the box would read outside of it."""
    result, fault = decode_result(_reply(answer, record, "detection", _detections(box)), record, "detection")
    assert result is None
    assert "reaches over the frame's edge" in fault


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("changes", [{"data": b"\x81\x00"}, {"codec": "jpeg"}, {"data": b""}])
def test_malformed_data_is_a_failure(
    record: FrameRecord, answer: MakeReply, task: str, changes: dict[str, Any]
) -> None:
    """The fault names the kind of result that was expected."""
    message = replace(_reply(answer, record, task, RESULTS[task]), **changes)
    result, fault = decode_result(message, record, task)
    assert result is None
    assert fault.startswith(f"{task_named(task).result_name} cannot be used: ")


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ANSWERED])
def test_a_refusal_has_no_result_and_no_fault(record: FrameRecord, answer: MakeReply, status: Status) -> None:
    """The worker's reason is part of the message."""
    assert decode_result(answer(record, status), record, "detection") == (None, "")
