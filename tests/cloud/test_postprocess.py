import threading

import numpy as np
import pytest

from cloud.postprocess import UNSEEN, Postprocessor
from cloud.replies import Replier
from cloud.request import Request
from shared import masks
from shared.frames import Layout
from shared.geometry import Geometry, Resize, lay_back, plan
from shared.labels import Labels
from shared.messages import FrameMessage, MaskMessage, Status, Want
from shared.model_card import ModelCard, Task
from shared.stages import Stage
from shared.topics import FrameId

WAIT_S = 20.0
CARD = ModelCard(
    "tiny",
    "1",
    "ab" * 32,
    Task.SEGMENTATION,
    8,
    12,
    Layout.RGB8,
    Resize.CROP,
    Labels(("a",), ((0, 0, 0),)),
    trained=True,
)
MASK = np.random.default_rng(2).integers(0, 12, (8, 12), np.uint8)


def _answers(*wishes: tuple[Want, Geometry], largest_answer: int = 10**6) -> list[MaskMessage]:
    """What the post-processor answers to frames with these wishes."""
    answers: list[MaskMessage] = []
    postprocessor = Postprocessor(Replier("w", "cloud/w/s9"), {"tiny": CARD})
    thread = threading.Thread(target=postprocessor.run)
    thread.start()
    for number, (want, geometry) in enumerate(wishes):
        message = FrameMessage(
            id=FrameId("car", "left", "s1", number),
            model="tiny",
            layout=Layout.RGB8,
            shape=(8, 12, 3),
            codec="raw",
            geometry=geometry,
            frame_stamp_ns=0,
            data=b"",
            want=want,
        )
        request = Request(
            b"", "car", "left", "tiny", answers.append, {Stage.RECEIVED: 0}, largest_answer, message=message
        )
        postprocessor.put(request, MASK)
    postprocessor.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return answers


@pytest.mark.parametrize("codec", list(masks.MASK_CODECS))
def test_a_mask_comes_back_as_the_model_made_it(codec: str) -> None:
    """In every codec, in every pixel, in the order of the frames."""
    answers = _answers(*[(Want(codec), plan(Resize.CROP, 16, 24, 8, 12))] * 5)
    assert [answer.id.sequence for answer in answers] == list(range(5))
    for answer in answers:
        assert (answer.status, answer.shape) == (Status.ANSWERED, (8, 12))
        np.testing.assert_array_equal(masks.decode(answer.data, codec, (8, 12)), MASK)
        stages = [stamp.stage for stamp in answer.stamps]
        assert stages == ["received", "postprocessed", "mask_encoded", "replied"]


def test_a_mask_is_laid_back_where_the_frames_size_was_asked_for() -> None:
    """What the model never saw is 255."""
    geometry = plan(Resize.CROP, 16, 40, 8, 12)
    (answer,) = _answers((Want("zstd", "frame"), geometry))
    assert answer.shape == (16, 40)
    mask = masks.decode(answer.data, "zstd", (16, 40))
    np.testing.assert_array_equal(mask, lay_back(MASK, geometry, UNSEEN))
    assert (mask == UNSEEN).any()


def test_what_cannot_be_sent_back_is_rejected_and_the_next_one_answered() -> None:
    """A wish of one vehicle must not end the thread that answers all."""
    large = (Want("raw", "frame"), plan(Resize.STRETCH, 500, 500, 8, 12))
    small = (Want("raw"), plan(Resize.CROP, 8, 12, 8, 12))
    rejected, answered = _answers(large, small, largest_answer=1000)
    assert (rejected.status, answered.status) == (Status.REJECTED, Status.ANSWERED)
    assert "ask for another mask codec or size" in rejected.reason
