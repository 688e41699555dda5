import numpy as np
import pytest
from msgspec.structs import replace

from cloud.serving.replies import Replier, ReplyTooLargeError
from cloud.serving.request import Request
from shared.imaging import mask_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.model_card import ModelCard, Task
from shared.messages.topics import FrameId
from shared.stages import Stage, Stamp

CARD = ModelCard(
    "tiny",
    "3",
    "ab" * 32,
    Task.SEGMENTATION,
    8,
    12,
    Layout.RGB8,
    Resize.CROP,
    Labels(("a",), ((0, 0, 0),)),
    trained=True,
)
FRAME = FrameMessage(
    id=FrameId("car", "left", "s1", 7),
    model="tiny",
    layout=Layout.RGB8,
    shape=(8, 12, 3),
    codec="raw",
    geometry=plan(Resize.CROP, 16, 24, 8, 12),
    frame_stamp_ns=0,
    data=b"",
    attempt=2,
    want=RequestOptions("rle"),
    stamps=(Stamp("due", "edge/car/s1", 1), Stamp("sent", "edge/car/s1", 2)),
)


def _request(answers: list[ResultMessage], message: FrameMessage | None = FRAME) -> Request:
    return Request(
        b"", "car", "left", "tiny", answers.append, {Stage.RECEIVED: 100}, max_reply_bytes=1000, message=message, batch_size=4
    )  # fmt: skip


def test_an_answer_carries_the_mask_and_all_that_it_came_from() -> None:
    """The geometry and the stamps are echoed; the model's hash says whose word it is."""
    answers: list[ResultMessage] = []
    mask = np.arange(96, dtype=np.uint8).reshape(8, 12)
    replier = Replier("w", "cloud/w/s9")
    replier.result(_request(answers), CARD, mask)
    (answer,) = answers
    assert (answer.id, answer.attempt, answer.status, answer.worker) == (FRAME.id, 2, Status.ANSWERED, "w")
    assert (answer.model, answer.model_version, answer.model_sha256) == ("tiny", "3", CARD.sha256)
    assert (answer.geometry, answer.batch_size, answer.codec) == (FRAME.geometry, 4, "rle")
    np.testing.assert_array_equal(mask_codecs.decode(answer.data, "rle", (8, 12)), mask)
    assert answer.stamps[:2] == FRAME.stamps
    own = answer.stamps[2:]
    assert [stamp.stage for stamp in own] == ["received", "mask_encoded", "replied"]
    assert {stamp.node for stamp in own} == {"cloud/w/s9"}
    assert own[1].at_ns <= own[2].at_ns
    assert replier.counts == {"answered": 1}


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.OVERLOADED, Status.REJECTED, Status.FAILED])
def test_a_refusal_says_why(status: Status) -> None:
    """In no more than what a message may hold."""
    answers: list[ResultMessage] = []
    replier = Replier("w", "cloud/w/s9")
    replier.refuse(_request(answers), status, "because " * 1000)
    (answer,) = answers
    assert (answer.id, answer.status, answer.shape, answer.data) == (FRAME.id, status, None, b"")
    assert answer.reason.startswith("because")
    assert len(answer.reason) == 500
    assert replier.counts == {status.value: 1}


def test_a_message_that_could_not_be_read_is_answered_by_its_correlation() -> None:
    """Its stamps are not known, its sender is."""
    answers: list[ResultMessage] = []
    request = _request(answers, None)
    request.correlation = FRAME.id
    Replier("w", "cloud/w/s9").refuse(request, Status.REJECTED, "broken")
    assert (answers[0].id, answers[0].attempt) == (FRAME.id, 1)
    assert [stamp.stage for stamp in answers[0].stamps] == ["received", "replied"]


def test_what_tells_nobody_whose_it_is_is_counted() -> None:
    """It cannot be answered, but it is not silent."""
    answers: list[ResultMessage] = []
    replier = Replier("w", "cloud/w/s9")
    replier.refuse(_request(answers, None), Status.REJECTED, "broken")
    assert not answers
    assert replier.counts == {"unreadable": 1}


def test_a_mask_larger_than_the_way_back_takes_is_not_sent() -> None:
    """The broker would cut the connection, for every vehicle's frames."""
    answers: list[ResultMessage] = []
    request = _request(answers, replace(FRAME, want=RequestOptions("raw")))
    with pytest.raises(ReplyTooLargeError, match="a mask of 1600 bytes, more than the 1000 that the way back takes"):
        Replier("w", "cloud/w/s9").result(request, CARD, np.zeros((40, 40), np.uint8))
    assert not answers
