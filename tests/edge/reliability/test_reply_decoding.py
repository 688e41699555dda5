from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edge.reliability.ledger import FrameRecord
from edge.reliability.reply_decoding import decoded
from shared import clock
from shared.imaging.geometry import Resize, plan
from shared.messages import results
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import Task
from shared.messages.results import Classification, Detections, Result, Tensors
from shared.messages.topics import FrameId
from shared.stages import Stage

Answer = Callable[..., ResultMessage]


@pytest.fixture
def journey(send: Callable[[FrameRecord], FrameRecord]) -> FrameRecord:
    """A frame of 16×30 pixels, sent to a model of 8×12."""
    begun = FrameRecord(FrameId("car", "left", "s1", 0), "/left", 0, 0, 0, 0, {Stage.DUE: clock.now_ns()}, None)
    begun.geometry = plan(Resize.CROP, 16, 30, 8, 12)
    return send(begun)


def _detections(*boxes: tuple[float, ...]) -> Detections:
    count = len(boxes)
    found = np.array(boxes, np.float32).reshape(count, 4)
    return Detections(found, np.zeros(count, np.uint16), np.full(count, 0.5, np.float32))


RESULTS: dict[Task, Result] = {
    Task.SEGMENTATION: np.ones((8, 12), np.uint8),
    Task.CLASSIFICATION: Classification((2, 0), (0.75, 0.25)),
    Task.DETECTION: _detections((0, 0, 30, 16), (3, 4, 5, 6)),
    Task.TENSORS: Tensors({"depth": np.arange(4, dtype=np.float32)}),
}


def _answered(answer: Answer, journey: FrameRecord, task: Task, result: Result) -> ResultMessage:
    shape = (result.shape[0], result.shape[1]) if isinstance(result, np.ndarray) else None
    return answer(journey, task=task, shape=shape, data=results.encode(result, "zstd"))


@pytest.mark.parametrize("task", Task)
def test_the_result_of_every_task_is_read(journey: FrameRecord, answer: Answer, task: Task) -> None:
    """Exactly as the worker packed it."""
    sent = RESULTS[task]
    read, fault = decoded(_answered(answer, journey, task, sent), journey, task)
    assert fault == ""
    assert read is not None
    assert results.encode(read, "raw") == results.encode(sent, "raw")


@pytest.mark.parametrize("task", Task)
def test_a_result_of_another_task_is_a_failure(journey: FrameRecord, answer: Answer, task: Task) -> None:
    """Sinks are chosen by the card; who asked for boxes cannot use a mask."""
    other = Task.DETECTION if task is Task.SEGMENTATION else Task.SEGMENTATION
    read, fault = decoded(_answered(answer, journey, other, RESULTS[other]), journey, task)
    assert read is None
    assert fault == f"{results.noun(task)} cannot be used: its model answers a {other}"


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 31, 5), (0, 0, 5, 17), (0, -3, 5, 5)])
def test_a_box_over_the_frames_edge_is_a_failure(journey: FrameRecord, answer: Answer, box: tuple[int, ...]) -> None:
    """Whoever cuts it out of the frame would read beyond it."""
    read, fault = decoded(_answered(answer, journey, Task.DETECTION, _detections(box)), journey, Task.DETECTION)
    assert read is None
    assert "reaches over the frame's edge" in fault


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("changes", [{"data": b"\x81\x00"}, {"codec": "jpeg"}, {"data": b""}])
def test_damaged_data_is_a_failure(journey: FrameRecord, answer: Answer, task: Task, changes: dict[str, Any]) -> None:
    """Told as one, with what it was to be."""
    message = replace(_answered(answer, journey, task, RESULTS[task]), **changes)
    read, fault = decoded(message, journey, task)
    assert read is None
    assert fault.startswith(f"{results.noun(task)} cannot be used: ")


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ANSWERED])
def test_a_refusal_has_no_result_and_no_fault(journey: FrameRecord, answer: Answer, status: Status) -> None:
    """Its reason is the worker's."""
    assert decoded(answer(journey, status), journey, Task.DETECTION) == (None, "")
