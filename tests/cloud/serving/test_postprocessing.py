import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud.serving.replies import Postprocessor, Replier
from cloud.serving.request import Request
from shared import clock
from shared.imaging import image_codecs
from shared.imaging.codec import MASK_CODECS
from shared.imaging.geometry import UNSEEN, Geometry, Resize, plan, to_source
from shared.messages.frame import RequestOptions, ResultMessage, Status
from shared.messages.results import Classification, Detections, Tensors
from shared.stages import Stage
from shared.task import task_named
from tests.shared.tasks.parts import HEIGHT, WIDTH, card, manifest, message
from tests.support.cloud_requests import make_request

WAIT_S = 60.0
SIZE = (HEIGHT, WIDTH)
MASK = np.random.default_rng(2).integers(0, 12, SIZE, np.uint8)
OUTPUTS: dict[str, Mapping[str, Any]] = {
    "segmentation": {"mask": MASK},
    "classification": {"scores": np.array([0.2, 0.7, 0.1], np.float32)},
    "detection": {
        "boxes": np.array([[0, 0, 10, 10], [20, 5, 40, 30]], np.float32),
        "scores": np.array([[0.2, 0, 0], [0, 0.9, 0]], np.float32),
    },
    "tensors": {"depth": np.ones((3, 4), np.float16), "flow": np.arange(5)},
}


def _answers(
    *requested: tuple[RequestOptions, Geometry], task: str = "segmentation", max_reply_bytes: int = 10**6
) -> list[ResultMessage]:
    """Replies to frames with these requested results."""
    answers: list[ResultMessage] = []
    postprocessor = Postprocessor(Replier("w", "cloud/w/s9"))
    model: Any = SimpleNamespace(card=card(task), manifest=manifest(task))
    thread = threading.Thread(target=postprocessor.run)
    thread.start()
    for want, geometry in requested:
        request = make_request(
            reply=answers.append,
            times={Stage.RECEIVED: 0, Stage.INFERRED: 0},
            max_reply_bytes=max_reply_bytes,
            message=message(want, geometry),
            outputs=OUTPUTS[task],
            batch_size=1,
        )
        postprocessor.put(request, model)
    postprocessor.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return answers


@pytest.mark.parametrize("codec", list(MASK_CODECS))
def test_a_mask_is_unchanged_by_its_codec(codec: str) -> None:
    """All pixels are equal after decoding."""
    answers = _answers(*[(RequestOptions(codec), plan(Resize.CROP, 80, 120, *SIZE))] * 5)
    assert len(answers) == 5
    for answer in answers:
        assert (answer.status, answer.shape) == (Status.ANSWERED, SIZE)
        np.testing.assert_array_equal(image_codecs.decode_mask(answer.data, codec, SIZE), MASK)
        stages = [stamp.stage for stamp in answer.stamps]
        assert stages == ["received", "inferred", "postprocessed", "mask_encoded", "replied"]


def test_a_mask_in_the_size_of_the_frame() -> None:
    """Pixels that the model did not see are 255."""
    geometry = plan(Resize.CROP, 80, 200, *SIZE)
    (answer,) = _answers((RequestOptions("zstd", "frame"), geometry))
    assert answer.shape == (80, 200)
    mask = image_codecs.decode_mask(answer.data, "zstd", (80, 200))
    np.testing.assert_array_equal(mask, to_source(MASK, geometry, UNSEEN))
    assert (mask == UNSEEN).any()


def test_a_result_that_is_too_large_is_rejected() -> None:
    """The next frame gets its result."""
    large = (RequestOptions("raw", "frame"), plan(Resize.STRETCH, 500, 500, *SIZE))
    small = (RequestOptions("raw"), plan(Resize.CROP, *SIZE, *SIZE))
    rejected, answered = _answers(large, small, max_reply_bytes=3000)
    assert (rejected.status, answered.status) == (Status.REJECTED, Status.ANSWERED)
    assert "ask for another mask codec or size" in rejected.reason


def test_each_task_has_its_own_result() -> None:
    """Only a mask has a shape."""
    plain = plan(Resize.CROP, *SIZE, *SIZE)
    decoded = {}
    for task in ("classification", "detection", "tensors"):
        (answer,) = _answers((RequestOptions(top_k=1), plain), task=task)
        assert (answer.status, answer.task, answer.shape) == (Status.ANSWERED, task, None)
        decoded[task] = task_named(task).decode(answer.data, answer.codec, None)
    assert decoded["classification"] == Classification((1,), (float(np.float32(0.7)),))
    detections = decoded["detection"]
    assert isinstance(detections, Detections)
    np.testing.assert_array_equal(detections.boxes, [[20, 5, 40, 30]])
    tensors = decoded["tensors"]
    assert isinstance(tensors, Tensors)
    np.testing.assert_array_equal(tensors.values["depth"], np.ones((3, 4), np.float16))


def test_tensors_that_are_too_large_are_rejected() -> None:
    """The reason says how to get a smaller reply."""
    (answer,) = _answers((RequestOptions("raw"), plan(Resize.CROP, *SIZE, *SIZE)), task="tensors", max_reply_bytes=100)
    assert answer.status is Status.REJECTED
    assert "or for fewer outputs" in answer.reason


def test_a_tensor_with_an_unsupported_type_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next frame gets its result."""
    monkeypatch.setitem(OUTPUTS, "tensors", {"depth": np.array(["text"]), "flow": np.arange(5)})
    plain = plan(Resize.CROP, *SIZE, *SIZE)
    refused, answered = _answers((RequestOptions(), plain), (RequestOptions(outputs=("flow",)), plain), task="tensors")
    assert refused.status is Status.REJECTED
    assert "have the model cast it" in refused.reason
    assert answered.status is Status.ANSWERED


class _SlowOutputs(dict[str, Any]):
    """Outputs of a model from which a result takes 30 ms by the changed clock."""

    def __init__(self, now: list[int]) -> None:
        super().__init__(OUTPUTS["segmentation"])
        self._now = now

    def __getitem__(self, name: str) -> Any:
        self._now[0] += 30_000_000
        return super().__getitem__(name)


def test_the_expected_time_counts_the_results_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where results are slower than the engine, the worker's load must show it."""
    now = [10**15]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    postprocessor = Postprocessor(Replier("w", "cloud/w/s9"), threads=2)
    model: Any = SimpleNamespace(card=card("segmentation"), manifest=manifest("segmentation"))
    assert (postprocessor.expected_ns, postprocessor.spacing_ns) == (0, 0)

    def request() -> Request:
        plain = message(RequestOptions(), plan(Resize.CROP, *SIZE, *SIZE))
        times = {Stage.RECEIVED: 0, Stage.INFERRED: 0}
        return make_request(times=times, message=plain, outputs=_SlowOutputs(now), batch_size=1)

    postprocessor.process(request(), model)
    assert (postprocessor.expected_ns, postprocessor.spacing_ns) == (30_000_000, 15_000_000)
    for _ in range(4):
        postprocessor.put(request(), model)
    assert postprocessor.expected_ns == (4 * 15 + 30) * 1_000_000
