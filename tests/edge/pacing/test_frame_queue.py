from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.pacing.frame_queue import FrameQueue
from edge.reliability.ledger import FrameRecord, Ledger
from shared.imaging.frames import Frame
from shared.runlog.latency_log import LogWriter

Due = Callable[..., tuple[FrameRecord, Frame]]


@pytest.fixture
def due(tmp_path: Path, frame: Callable[..., Frame]) -> Iterator[Due]:
    """Makes frames of a camera that are due."""
    with LogWriter(tmp_path) as log:
        ledger = Ledger(log, vehicle="car", session="s1", model="tiny")
        yield lambda index=0, camera="/l": (ledger.begin(frame(index, camera), index), frame(index, camera))


def test_the_newest_frame_of_a_camera_pushes_the_older_one_out(due: Due) -> None:
    """And no other camera's; the one that was due first is taken first."""
    slot = FrameQueue()
    offered = [due(index, camera) for index, camera in enumerate(("/l", "/r", "/l"))]
    assert [slot.put(*item) for item in offered] == [None, None, offered[0][0]]
    assert slot.take() == offered[1]
    assert slot.take() == offered[2]
    slot.close()
    assert slot.take() is None


def test_a_deeper_slot_gives_up_the_oldest_of_the_camera_that_is_full(due: Due) -> None:
    """What waits is taken in the order in which it was due, whichever camera it came from."""
    slot = FrameQueue(2)
    offered = [due(index, camera) for index, camera in enumerate(("/l", "/l", "/r", "/l", "/l", "/r"))]
    pushed_out = [slot.put(*item) for item in offered]
    assert pushed_out == [None, None, None, offered[0][0], offered[1][0], None]
    slot.close()
    assert [slot.take() for _ in range(5)] == [*offered[2:], None]


def test_a_frame_taken_makes_room(due: Due) -> None:
    """A slot that counted what has left it would give frames up for nothing."""
    slot = FrameQueue(2)
    for index in range(10):
        offered = due(index)
        assert slot.put(*offered) is None
        assert slot.take() == offered


def test_what_waits_when_nobody_will_take_it_is_handed_back(due: Due) -> None:
    """So that it gets its row."""
    slot = FrameQueue(3)
    journeys = [due(index, camera) for index, camera in enumerate(("/l", "/r", "/l"))]
    for item in journeys:
        slot.put(*item)
    assert {str(journey.id) for journey in slot.drain()} == {str(journey.id) for journey, _ in journeys}
    assert slot.drain() == []
