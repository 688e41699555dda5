"""Replies to frames, and the statistics per model."""

import numpy as np
import pytest
from msgspec.structs import replace

from cloud.serving.replies import Replier, ReplyTooLargeError, ServingStats
from cloud.serving.request import Request
from shared.imaging import image_codecs
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.topics import FrameId
from shared.stages import Stage, Stamp
from tests.support.cloud_requests import make_request
from tests.support.tiny_model import CARD, HEIGHT, WIDTH, frame

FRAME = replace(
    frame(7),
    geometry=plan(Resize.CROP, 16, 24, HEIGHT, WIDTH),
    attempt=2,
    options=RequestOptions("rle"),
    stamps=(Stamp("due", "edge/car/s1", 1), Stamp("sent", "edge/car/s1", 2)),
)


def _request(replies: list[ResultMessage], message: FrameMessage | None = FRAME) -> Request:
    times = {Stage.RECEIVED: 100}
    return make_request(reply=replies.append, times=times, max_reply_bytes=1000, message=message, batch_size=4)


def test_a_reply_has_the_mask_and_its_origin() -> None:
    """It repeats geometry and stamps of the message, and has the hash of the model."""
    replies: list[ResultMessage] = []
    mask = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH)
    replier = Replier("w", "cloud/w/s9")
    replier.result(_request(replies), CARD, mask)
    (reply,) = replies
    assert (reply.id, reply.attempt, reply.status, reply.worker) == (FRAME.id, 2, Status.ANSWERED, "w")
    assert (reply.model, reply.model_version, reply.model_sha256) == ("tiny", CARD.version, CARD.sha256)
    assert (reply.geometry, reply.batch_size, reply.codec) == (FRAME.geometry, 4, "rle")
    np.testing.assert_array_equal(image_codecs.decode_mask(reply.data, "rle", (HEIGHT, WIDTH)), mask)
    assert reply.stamps[:2] == FRAME.stamps
    own = reply.stamps[2:]
    assert [stamp.stage for stamp in own] == ["received", "mask_encoded", "replied"]
    assert {stamp.node for stamp in own} == {"cloud/w/s9"}
    assert own[1].at_ns <= own[2].at_ns
    assert replier.counts == {"answered": 1}


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.OVERLOADED, Status.REJECTED, Status.FAILED])
def test_a_refusal_has_a_reason(status: Status) -> None:
    """The reason is cut at the limit of the message."""
    replies: list[ResultMessage] = []
    replier = Replier("w", "cloud/w/s9")
    replier.refuse(_request(replies), status, "because " * 1000)
    (reply,) = replies
    assert (reply.id, reply.status, reply.shape, reply.data) == (FRAME.id, status, None, b"")
    assert reply.reason.startswith("because")
    assert len(reply.reason) == 500
    assert replier.counts == {status.value: 1}


def test_an_unreadable_message_is_refused_by_its_correlation_data() -> None:
    """The sender is known although the stamps are not."""
    replies: list[ResultMessage] = []
    request = _request(replies, None)
    request.correlation = FRAME.id
    Replier("w", "cloud/w/s9").refuse(request, Status.REJECTED, "broken")
    assert (replies[0].id, replies[0].attempt) == (FRAME.id, 1)
    assert [stamp.stage for stamp in replies[0].stamps] == ["received", "replied"]


def test_a_frame_without_an_id_is_counted() -> None:
    """No reply can be sent to it."""
    replies: list[ResultMessage] = []
    replier = Replier("w", "cloud/w/s9")
    replier.refuse(_request(replies, None), Status.REJECTED, "broken")
    assert not replies
    assert replier.counts == {"unreadable": 1}


def test_a_mask_above_the_limit_is_not_sent() -> None:
    """The broker would close the connection, and with it stop the frames of all vehicles."""
    replies: list[ResultMessage] = []
    request = _request(replies, replace(FRAME, options=RequestOptions("raw")))
    with pytest.raises(ReplyTooLargeError, match="a mask of 1600 bytes exceeds the limit of 1000 for a reply"):
        Replier("w", "cloud/w/s9").result(request, CARD, np.zeros((40, 40), np.uint8))
    assert not replies


def request(model: str = "tiny", batch_size: int = 1) -> Request:
    """A frame that waited 5 ns, was inferred in 7 and answered in 2."""
    times = {Stage.RECEIVED: 10, Stage.DEQUEUED: 15, Stage.INFERRED: 22, Stage.REPLIED: 24}
    return make_request(model=model, times=times, batch_size=batch_size)


def reply(status: Status = Status.ANSWERED) -> ResultMessage:
    """The reply to a frame."""
    return ResultMessage(FrameId("car", "left", "s1", 0), 1, status, "w", model="tiny", model_version="1")


def test_a_batch_of_three_is_one_execution() -> None:
    """Frames and batches are counted separately."""
    stats = ServingStats()
    for _ in range(3):
        stats.add(request(batch_size=3), reply())
    tiny = stats.models["tiny", "1"]
    assert (tiny.answered, round(tiny.executions)) == (3, 1)
    assert tiny.stages_ns == {Stage.DEQUEUED: 15, Stage.INFERRED: 21, Stage.REPLIED: 6}


def test_the_number_of_unknown_model_names_is_bounded() -> None:
    """Clients can invent model names."""
    stats = ServingStats()
    for number in range(1000):
        stats.add(request(f"model-{number}"), reply(Status.REJECTED))
    assert len(stats.refused) <= 257
    assert sum(stats.refused.values()) == 1000
    assert stats.refused["", Status.REJECTED, ""] == 1000 - 256
