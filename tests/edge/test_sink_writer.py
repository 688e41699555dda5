"""The writer of the sinks."""

import threading

import numpy as np
import pytest

from edge.frame_record import FrameRecord
from edge.sinks.sink import FrameResult, Sink
from edge.sinks.writer import SinkWriter
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize, apply, plan
from shared.messages.results import ModelResult
from shared.runlog.latency_log import Outcome
from tests.edge.samples import CARD, HEIGHT, WIDTH, RecordingSink, make_record
from tests.support.waiting import beside, until

WAIT_S = 60.0
MASK = np.zeros((HEIGHT, WIDTH), np.uint8)
ANSWER = ModelResult(MASK, "3", "tensorflow fp32")


def failing(at: int, error: Exception) -> RecordingSink:
    """Returns a sink that raises an error at a frame."""

    def fail(frame: FrameResult) -> None:
        if frame.sequence == at:
            raise error

    return RecordingSink(fail)


def _record(sequence: int) -> FrameRecord:
    record = make_record(sequence)
    record.row.outcome = Outcome.ANSWERED
    record.image, record.geometry = (
        np.zeros((HEIGHT, WIDTH, 3), np.uint8),
        plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
    )
    return record


class Writer(SinkWriter):
    """A writer, and the numbers of the frames that have not ended."""

    def __init__(self, *sinks: Sink, frames: int = 0) -> None:
        self.open = set(range(frames))
        super().__init__(sinks, CARD, lambda: min(self.open, default=frames))

    def put(self, sequence: int) -> None:
        """Ends a frame with a result."""
        self.ended(_record(sequence), ANSWER)
        self.open.discard(sequence)


def _write(writer: Writer, sequences: list[int]) -> None:
    with beside(writer.run):
        for sequence in sequences:
            writer.put(sequence)
        writer.end()


def test_frames_are_put_in_order() -> None:
    """Several workers answer in any order; a video must not jump back."""
    sink = RecordingSink()
    _write(Writer(sink, frames=8), [3, 0, 2, 1, 7, 4, 6, 5])
    assert sink.got == list(range(8))
    assert sink.is_closed


def test_a_frame_that_is_too_late_is_left_out_only_by_sinks_that_need_order() -> None:
    """Every answered frame has its PNG file."""
    video, images = RecordingSink(), RecordingSink(in_order=False)
    writer = Writer(video, images, frames=100)
    _write(writer, [*range(1, 100), 0])
    assert video.got == list(range(1, 100))
    assert sorted(images.got) == list(range(100))
    assert writer.too_late == 1


def test_a_frame_is_written_as_soon_as_no_earlier_one_can_come() -> None:
    """A frame that was dropped is not waited for."""
    sink = RecordingSink()
    writer = Writer(sink, frames=5)
    with beside(writer.run):
        writer.put(2)
        writer.put(1)
        writer.open.remove(0)
        writer.put(3)
        until(lambda: sink.got == [1, 2])
        writer.end()
    assert sink.got == [1, 2, 3]


def test_a_sink_without_order_gets_each_frame_at_once() -> None:
    """A program that follows `results.jsonl` sees each frame as soon as it is answered."""
    sink = RecordingSink(in_order=False)
    writer = Writer(sink, RecordingSink())
    with beside(writer.run):
        for count, sequence in enumerate((2, 0, 1), start=1):
            writer.put(sequence)
            until(lambda: len(sink.got) == count)  # noqa: B023  Called at once.
        writer.end()
    assert writer.too_late == 0


def test_the_queue_of_results_is_bounded() -> None:
    """A slow disk must neither fill the memory nor lose results, so `put` waits."""
    writer = Writer(RecordingSink(in_order=False))
    more = threading.Event()
    for sequence in range(64):
        writer.put(sequence)

    def put_more() -> None:
        writer.put(64)
        more.set()

    with beside(put_more):
        assert not more.wait(0.2)
        with beside(writer.run):
            assert more.wait(WAIT_S)
            writer.end()
    assert writer.written == 65


def test_the_wait_for_a_sink_that_hangs_ends() -> None:
    """A disk that hangs does not block the end of the run."""
    may_write = threading.Event()

    sink = RecordingSink(lambda _: may_write.wait(WAIT_S), in_order=False)
    writer = Writer(sink)
    for sequence in range(5):
        writer.put(sequence)
    writer.end()
    thread = threading.Thread(target=writer.run)
    thread.start()
    writer.wait_until_written(thread, 0.1)
    assert (sink.got, thread.is_alive()) == ([], True)
    may_write.set()
    writer.wait_until_written(thread, WAIT_S)
    assert len(sink.got) == 5


def test_a_failed_sink_is_removed_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The run and the other sinks continue. A full disk is logged when it begins, and once."""
    full, healthy = failing(2, SkylaneError("disk full")), RecordingSink()
    writer = Writer(full, healthy)
    _write(writer, list(range(30)))
    assert full.got == [0, 1]
    assert healthy.got == list(range(30))
    assert [str(fault) for fault in writer.faults] == ["disk full"]
    assert caplog.text.count("sink removed") == caplog.text.count("disk full") == 1
    assert full.is_closed
    assert healthy.is_closed


def test_an_exception_in_a_sink_does_not_block_the_receiver() -> None:
    """The thread of the writer ends with the exception, and `put` stops waiting."""
    writer = Writer(failing(0, ZeroDivisionError()))
    raised: list[type[BaseException]] = []

    def run() -> None:
        try:
            writer.run()
        except ZeroDivisionError as error:
            raised.append(type(error))

    def put_many() -> None:
        for sequence in range(200):
            writer.put(sequence)
        writer.end()

    with beside(run, put_many):
        pass
    assert raised == [ZeroDivisionError]


def test_without_sinks_no_result_is_queued() -> None:
    """The queue would otherwise be full after 64 frames."""
    writer = Writer()
    for sequence in range(200):
        writer.put(sequence)


def test_sinks_get_the_models_input_wherever_the_frame_was_resized() -> None:
    """A mask of the cropped input does not match the whole frame."""
    sink = RecordingSink()
    writer = Writer(sink)
    record = _record(0)
    frame = np.random.default_rng(5).integers(0, 256, (2 * HEIGHT, 3 * WIDTH, 3), np.uint8)
    record.image, record.geometry = frame, plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
    writer.ended(record, ANSWER)
    writer.end()
    writer.run()
    np.testing.assert_array_equal(sink.frames[0].image, apply(frame, record.geometry))
    assert (sink.frames[0].model_version, sink.frames[0].engine) == ("3", "tensorflow fp32")
