"""The queue of due frames."""

from edge.frame_record import FrameRecord
from edge.pacing import FrameQueue
from shared.imaging.frames import Frame
from tests.edge.samples import make_frame, make_record


def due(sequence: int, camera: str = "/l") -> tuple[FrameRecord, Frame]:
    """Makes a frame that is due, with its record."""
    return make_record(sequence, camera=camera), make_frame(sequence, camera)


def test_a_new_frame_replaces_the_waiting_one_of_its_camera() -> None:
    """Frames of other cameras stay; the frame that was due first is taken first."""
    frames = FrameQueue()
    due_frames = [due(index, camera) for index, camera in enumerate(("/l", "/r", "/l"))]
    assert [frames.put(*item) for item in due_frames] == [None, None, due_frames[0][0]]
    assert frames.take() == due_frames[1]
    assert frames.take() == due_frames[2]
    frames.close()
    assert frames.take() is None


def test_a_deeper_queue_drops_the_oldest_frame_of_a_full_camera() -> None:
    """Frames of all cameras are taken in the order in which they were due."""
    frames = FrameQueue(2)
    due_frames = [due(index, camera) for index, camera in enumerate(("/l", "/l", "/r", "/l", "/l", "/r"))]
    replaced = [frames.put(*item) for item in due_frames]
    assert replaced == [None, None, None, due_frames[0][0], due_frames[1][0], None]
    frames.close()
    assert [frames.take() for _ in range(5)] == [*due_frames[2:], None]


def test_a_taken_frame_makes_room() -> None:
    """Only waiting frames count against the limit."""
    frames = FrameQueue(2)
    for index in range(10):
        due_frame = due(index)
        assert frames.put(*due_frame) is None
        assert frames.take() == due_frame


def test_drain_returns_all_waiting_frames() -> None:
    """The waiting frames get their rows in the log at the end of a run."""
    frames = FrameQueue(3)
    records = [due(index, camera) for index, camera in enumerate(("/l", "/r", "/l"))]
    for item in records:
        frames.put(*item)
    assert {str(record.id) for record in frames.drain()} == {str(record.id) for record, _ in records}
    assert frames.drain() == []
