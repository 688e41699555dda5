"""Statistics per model."""

from cloud.serving.replies import ServingStats
from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.messages.topics import FrameId
from shared.stages import Stage
from tests.support.cloud_requests import make_request


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
