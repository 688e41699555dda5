import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud.serving.postprocessing import Postprocessor
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from shared.imaging import mask_codecs
from shared.imaging.geometry import UNSEEN, Geometry, Resize, plan, to_source
from shared.messages import results
from shared.messages.frame import RequestOptions, ResultMessage, Status
from shared.messages.model_card import Task
from shared.messages.results import Classification, Detections, Tensors
from shared.stages import Stage
from tests.cloud.tasks.parts import HEIGHT, WIDTH, card, manifest, message

WAIT_S = 60.0
SIZE = (HEIGHT, WIDTH)
MASK = np.random.default_rng(2).integers(0, 12, SIZE, np.uint8)
OUTPUTS: dict[Task, Mapping[str, Any]] = {
    Task.SEGMENTATION: {"mask": MASK},
    Task.CLASSIFICATION: {"scores": np.array([0.2, 0.7, 0.1], np.float32)},
    Task.DETECTION: {
        "boxes": np.array([[0, 0, 10, 10], [20, 5, 40, 30]], np.float32),
        "scores": np.array([[0.2, 0, 0], [0, 0.9, 0]], np.float32),
    },
    Task.TENSORS: {"depth": np.ones((3, 4), np.float16), "flow": np.arange(5)},
}


def _answers(
    *wishes: tuple[RequestOptions, Geometry], task: Task = Task.SEGMENTATION, max_reply_bytes: int = 10**6
) -> list[ResultMessage]:
    """What the post-processor answers to frames with these wishes."""
    answers: list[ResultMessage] = []
    postprocessor = Postprocessor(Replier("w", "cloud/w/s9"))
    model: Any = SimpleNamespace(card=card(task), manifest=manifest(task))
    thread = threading.Thread(target=postprocessor.run)
    thread.start()
    for want, geometry in wishes:
        request = Request(
            b"", "car", "left", "tiny", answers.append, {Stage.RECEIVED: 0, Stage.INFERRED: 0}, max_reply_bytes,
            message=message(want, geometry), outputs=OUTPUTS[task], batch_size=1,
        )  # fmt: skip
        postprocessor.put(request, model)
    postprocessor.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return answers


@pytest.mark.parametrize("codec", list(mask_codecs.MASK_CODECS))
def test_a_mask_comes_back_as_the_model_made_it(codec: str) -> None:
    """In every codec, in every pixel."""
    answers = _answers(*[(RequestOptions(codec), plan(Resize.CROP, 80, 120, *SIZE))] * 5)
    assert len(answers) == 5
    for answer in answers:
        assert (answer.status, answer.shape) == (Status.ANSWERED, SIZE)
        np.testing.assert_array_equal(mask_codecs.decode(answer.data, codec, SIZE), MASK)
        stages = [stamp.stage for stamp in answer.stamps]
        assert stages == ["received", "inferred", "postprocessed", "mask_encoded", "replied"]


def test_a_mask_is_laid_back_where_the_frames_size_was_asked_for() -> None:
    """What the model never saw is 255."""
    geometry = plan(Resize.CROP, 80, 200, *SIZE)
    (answer,) = _answers((RequestOptions("zstd", "frame"), geometry))
    assert answer.shape == (80, 200)
    mask = mask_codecs.decode(answer.data, "zstd", (80, 200))
    np.testing.assert_array_equal(mask, to_source(MASK, geometry, UNSEEN))
    assert (mask == UNSEEN).any()


def test_what_cannot_be_sent_back_is_rejected_and_the_next_one_answered() -> None:
    """A wish of one vehicle must not end the thread that answers all."""
    large = (RequestOptions("raw", "frame"), plan(Resize.STRETCH, 500, 500, *SIZE))
    small = (RequestOptions("raw"), plan(Resize.CROP, *SIZE, *SIZE))
    rejected, answered = _answers(large, small, max_reply_bytes=3000)
    assert (rejected.status, answered.status) == (Status.REJECTED, Status.ANSWERED)
    assert "ask for another mask codec or size" in rejected.reason


def test_every_task_is_answered_in_its_own_form() -> None:
    """With no mask's shape where there is no mask."""
    plain = plan(Resize.CROP, *SIZE, *SIZE)
    said = {}
    for task in (Task.CLASSIFICATION, Task.DETECTION, Task.TENSORS):
        (answer,) = _answers((RequestOptions(top_k=1), plain), task=task)
        assert (answer.status, answer.task, answer.shape) == (Status.ANSWERED, task, None)
        said[task] = results.decode(task, answer.data, answer.codec, None)
    assert said[Task.CLASSIFICATION] == Classification((1,), (float(np.float32(0.7)),))
    detections = said[Task.DETECTION]
    assert isinstance(detections, Detections)
    np.testing.assert_array_equal(detections.boxes, [[20, 5, 40, 30]])
    tensors = said[Task.TENSORS]
    assert isinstance(tensors, Tensors)
    np.testing.assert_array_equal(tensors.values["depth"], np.ones((3, 4), np.float16))


def test_tensors_larger_than_the_way_back_are_rejected() -> None:
    """Who asked learns what to ask for instead."""
    (answer,) = _answers(
        (RequestOptions("raw"), plan(Resize.CROP, *SIZE, *SIZE)), task=Task.TENSORS, max_reply_bytes=100
    )
    assert answer.status is Status.REJECTED
    assert "ask for fewer outputs or another codec" in answer.reason


def test_a_tensor_that_cannot_travel_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the thread that answers all lives on."""
    monkeypatch.setitem(OUTPUTS, Task.TENSORS, {"depth": np.array(["text"]), "flow": np.arange(5)})
    plain = plan(Resize.CROP, *SIZE, *SIZE)
    refused, answered = _answers(
        (RequestOptions(), plain), (RequestOptions(outputs=("flow",)), plain), task=Task.TENSORS
    )
    assert refused.status is Status.REJECTED
    assert "have the model cast it" in refused.reason
    assert answered.status is Status.ANSWERED
