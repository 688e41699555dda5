"""How many frames each model answered, and where their time went."""

from cloud.serving.model_stats import Tally
from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.messages.topics import FrameId
from shared.stages import Stage


def request(model: str = "tiny", batch_size: int = 1) -> Request:
    """A frame that waited 5 ns, was inferred in 7 and answered in 2."""
    times = {Stage.RECEIVED: 10, Stage.DEQUEUED: 15, Stage.INFERRED: 22, Stage.REPLIED: 24}
    asked = Request(b"", "car", "left", model, lambda _: None, times, 1 << 20)
    asked.batch_size = batch_size
    return asked


def answer(status: Status = Status.ANSWERED) -> ResultMessage:
    """What its sender is told."""
    return ResultMessage(FrameId("car", "left", "s1", 0), 1, status, "w", model="tiny", model_version="1")


def test_a_batch_of_three_is_one_execution() -> None:
    """Frames and batches apart tell how well a worker batches."""
    tally = Tally()
    for _ in range(3):
        tally.add(request(batch_size=3), answer())
    told = tally.models["tiny", "1"]
    assert (told.answered, round(told.executions)) == (3, 1)
    assert told.stages_ns == {Stage.DEQUEUED: 15, Stage.INFERRED: 21, Stage.REPLIED: 6}


def test_strangers_names_are_not_remembered_without_end() -> None:
    """Anybody may name a model that is not there, and a new one each time."""
    tally = Tally()
    for number in range(1000):
        tally.add(request(f"model-{number}"), answer(Status.REJECTED))
    assert len(tally.refused) <= 257
    assert sum(tally.refused.values()) == 1000
    assert tally.refused["", Status.REJECTED] == 1000 - 256
