import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.reliability.ledger import FrameRecord
from edge.sinks.bag import BagSink
from edge.sinks.overlay import OverlaySink
from edge.sinks.png import PngSink
from edge.sinks.sink import Answered, SinkError, SinkFeed
from edge.sources.source import open_source
from shared.errors import SkylaneError
from shared.imaging.frames import Frame
from shared.imaging.geometry import Resize, apply, plan, to_source
from shared.imaging.labels import colourise
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.stages import Stage

HEIGHT, WIDTH = 48, 64
WAIT_S = 60.0
ANSWER = ResultMessage(
    FrameId("car", "left", "s1", 0), 1, Status.ANSWERED, "w", model_version="3", engine="tensorflow fp32"
)


def _answered(sequence: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Answered:
    noise = np.random.default_rng(sequence)
    return Answered(
        camera="/cam/left/image_raw",
        sequence=sequence,
        frame_index=sequence,
        stamp_ns=10**18 + sequence,
        source_ns=10**18 + sequence * 10**8,
        picture=noise.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8),
        result=noise.integers(0, 2, (HEIGHT, WIDTH), np.uint8),
        geometry=plan(Resize.CROP, *size, HEIGHT, WIDTH),
    )


def _mask(answered: Answered) -> Any:
    return answered.result


@pytest.fixture
def card(card: ModelCard) -> ModelCard:
    """A model large enough to look at."""
    return replace(card, height=HEIGHT, width=WIDTH)


def test_masks_become_pictures_of_ids_and_of_colours(card: ModelCard, tmp_path: Path) -> None:
    """The one for programs, bit-exact; the other for people."""
    answered = _answered(7)
    PngSink(tmp_path, card).write(answered)
    ids: Any = cv2.imread(str(tmp_path / "masks" / "cam_left_image_raw" / "000007.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(ids, answered.result)
    colours: Any = cv2.imread(str(tmp_path / "masks_colour" / "cam_left_image_raw" / "000007.png"))
    np.testing.assert_array_equal(colours[..., ::-1], colourise(_mask(answered), card.labels))


def test_pictures_made_with_untrained_weights_say_so(card: ModelCard, tmp_path: Path) -> None:
    """But the ids stay what the model said."""
    answered = _answered()
    PngSink(tmp_path, replace(card, trained=False)).write(answered)
    ids: Any = cv2.imread(str(next((tmp_path / "masks").rglob("*.png"))), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(ids, answered.result)
    colours: Any = cv2.imread(str(next((tmp_path / "masks_colour").rglob("*.png"))))
    assert (colours[..., ::-1] != colourise(_mask(answered), card.labels)).any()


def test_a_picture_that_cannot_be_written_is_told(card: ModelCard, tmp_path: Path) -> None:
    """One line that says what to do."""
    (tmp_path / "masks").write_text("in the way")
    with pytest.raises(SinkError, match="Not a directory: choose another --out"):
        PngSink(tmp_path, card).write(_answered())


def test_overlays_are_small_and_named_by_camera_and_sequence(card: ModelCard, tmp_path: Path) -> None:
    """A report finds the picture of a frame by its row, and must be able to carry a few of them."""
    large = replace(
        _answered(7),
        picture=np.full((608, 968, 3), 100, np.uint8),
        result=np.ones((608, 968), np.uint8),
    )
    OverlaySink(tmp_path, card).write(large)
    picture: Any = cv2.imread(str(tmp_path / "overlays" / "cam_left_image_raw_000007.jpg"))
    assert picture.shape == (301, 480, 3)
    expected = np.array(card.labels.colours[1]) / 2 + 50
    np.testing.assert_allclose(picture[150, 240, ::-1], expected, atol=6)


def test_overlays_of_untrained_weights_say_so(card: ModelCard, tmp_path: Path) -> None:
    """A picture in a report is passed on without its report."""
    for trained in (True, False):
        OverlaySink(tmp_path / str(trained), replace(card, trained=trained)).write(_answered())
    pictures = [next((tmp_path / name / "overlays").iterdir()).read_bytes() for name in ("True", "False")]
    assert pictures[0] != pictures[1]


def test_an_overlay_that_cannot_be_written_is_told(card: ModelCard, tmp_path: Path) -> None:
    """One line that says what to do."""
    (tmp_path / "overlays").write_text("in the way")
    with pytest.raises(SinkError, match="File exists: choose another --out"):
        OverlaySink(tmp_path, card).write(_answered())


def test_a_mask_of_the_frames_size_lies_on_what_the_model_saw_of_it(card: ModelCard, tmp_path: Path) -> None:
    """Laid over the cut-out as it is, it would show everything beside its place."""
    small = _answered(1, (2 * HEIGHT, 4 * WIDTH))
    large = replace(small, result=to_source(_mask(small), small.geometry, 255))
    for name, answered in (("small", small), ("large", large)):
        OverlaySink(tmp_path / name, card).write(answered)
    one, other = (next((tmp_path / name / "overlays").iterdir()).read_bytes() for name in ("small", "large"))
    assert one == other


def test_masks_in_a_bag_lie_on_the_frame_with_its_stamp(card: ModelCard, tmp_path: Path) -> None:
    """A viewer shows both together only so."""
    answered = _answered(3, (2 * HEIGHT, 3 * WIDTH))
    sink = BagSink(tmp_path, card)
    sink.write(answered)
    sink.close()
    source = open_source(str(tmp_path / "masks_bag"), topics=("/cam/left/masks",))
    (frame,) = source.frames()
    source.close()
    assert isinstance(frame, Frame)
    np.testing.assert_array_equal(frame.pixels, to_source(_mask(answered), answered.geometry, 255))
    assert (frame.stamp_ns, frame.source_ns) == (answered.stamp_ns, answered.source_ns)


class Recorder:
    """A sink that keeps the numbers it gets."""

    def __init__(self, *, in_order: bool, fail_at: int = -1, error: Exception | None = None) -> None:
        self.in_order = in_order
        self.got: list[int] = []
        self.is_closed = False
        self._fail_at = fail_at
        self._error = error

    def write(self, answered: Answered) -> None:
        """See Sink."""
        if self._error and answered.sequence == self._fail_at:
            raise self._error
        self.got.append(answered.sequence)

    def close(self) -> None:
        """See Sink."""
        self.is_closed = True


def _journey(sequence: int) -> FrameRecord:
    answered = _answered(sequence)
    journey = FrameRecord(
        id=FrameId("car", "left", "s1", sequence), camera="/left", frame_index=sequence, frame_stamp_ns=0,
        source_ns=0, read_ns=0, times={Stage.DUE: 0}, deadline_ns=None,
    )  # fmt: skip
    journey.picture, journey.geometry = answered.picture, answered.geometry
    return journey


def _fed(feed: SinkFeed, sequences: list[int]) -> None:
    thread = threading.Thread(target=feed.run)
    thread.start()
    for sequence in sequences:
        feed.put(_journey(sequence), ANSWER, _answered(sequence).result)
    feed.end()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_frames_that_overtook_each_other_come_in_order_again(card: ModelCard) -> None:
    """Several workers answer as they like; a film must not jump back."""
    sink = Recorder(in_order=True)
    _fed(SinkFeed([sink], card), [3, 0, 2, 1, 7, 4, 6, 5])
    assert sink.got == list(range(8))
    assert sink.is_closed


def test_a_frame_far_too_late_is_left_out_only_where_the_order_matters(card: ModelCard) -> None:
    """Every answered frame has its PNG."""
    film, pictures = Recorder(in_order=True), Recorder(in_order=False)
    feed = SinkFeed([film, pictures], card)
    _fed(feed, [*range(1, 40), 0])
    assert film.got == list(range(1, 40))
    assert sorted(pictures.got) == list(range(40))
    assert feed.overtaken == 1


def test_who_needs_no_order_waits_for_none(card: ModelCard) -> None:
    """A program that follows `results.jsonl` reads of a frame when it is answered, and not sixteen frames later."""
    came = [threading.Event() for _ in range(3)]

    class Follower(Recorder):
        def write(self, answered: Answered) -> None:
            came[answered.sequence].set()

    feed = SinkFeed([Follower(in_order=False), Recorder(in_order=True)], card)
    thread = threading.Thread(target=feed.run)
    thread.start()
    for sequence in (2, 0, 1):
        feed.put(_journey(sequence), ANSWER, _answered(sequence).result)
        assert came[sequence].wait(WAIT_S)
    feed.end()
    thread.join(WAIT_S)
    assert feed.overtaken == 0


def test_a_sink_that_stalls_holds_so_many_results_and_no_more(card: ModelCard) -> None:
    """Each holds its picture: a disk that hangs must not take the memory, and no result may be lost."""
    feed = SinkFeed([Recorder(in_order=False)], card)
    more = threading.Event()
    for sequence in range(64):
        feed.put(_journey(sequence), ANSWER, _answered(sequence).result)

    def put_more() -> None:
        feed.put(_journey(64), ANSWER, _answered(64).result)
        more.set()

    waiting = threading.Thread(target=put_more)
    waiting.start()
    assert feed._handover._queue.full()
    assert not more.is_set()
    writing = threading.Thread(target=feed.run)
    writing.start()
    assert more.wait(WAIT_S)
    feed.end()
    writing.join(WAIT_S)
    assert feed.written == 65


class Gated(Recorder):
    """A sink that writes a frame only when it is allowed to."""

    def __init__(self) -> None:
        super().__init__(in_order=False)
        self.may_write = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)  # Once for each frame, and for the end: what came before is written.

    def write(self, answered: Answered) -> None:
        """See Sink."""
        self.asked.release()
        assert self.may_write.acquire(timeout=WAIT_S)
        super().write(answered)

    def close(self) -> None:
        """See Sink."""
        super().close()
        self.asked.release()


class Stepped(threading.Thread):
    """The thread of a feed: each time it is joined, the sink writes one more frame, as long as `writes` says."""

    def __init__(self, feed: SinkFeed, sink: Gated, writes: int) -> None:
        super().__init__(target=feed.run)
        self.sink, self.writes = sink, writes

    def join(self, timeout: float | None = None) -> None:
        """Stands for `timeout` seconds in which one frame is written, or none."""
        if self.writes:
            self.writes -= 1
            self.sink.may_write.release()
            assert self.sink.asked.acquire(timeout=timeout)
        elif self.sink.is_closed:
            super().join(timeout)


@pytest.mark.parametrize("writes", [2, 5], ids=["stalled", "slow"])
def test_sinks_are_waited_for_as_long_as_they_write(card: ModelCard, writes: int) -> None:
    """A slow disk gets all the time it needs; one that hangs keeps no run from ending."""
    sink = Gated()
    feed = SinkFeed([sink], card)
    for sequence in range(5):
        feed.put(_journey(sequence), ANSWER, _answered(sequence).result)
    feed.end()
    thread = Stepped(feed, sink, writes)
    thread.start()
    assert sink.asked.acquire(timeout=WAIT_S)
    feed.wait_until_written(thread, WAIT_S)
    assert (len(sink.got), thread.is_alive()) == (writes, writes < 5)
    sink.may_write.release(5)
    threading.Thread.join(thread, WAIT_S)
    assert len(sink.got) == 5


def test_where_nobody_needs_the_order_no_frame_is_too_late(card: ModelCard) -> None:
    """A run without video and bag would be told that frames are missing in them."""
    feed = SinkFeed([Recorder(in_order=False)], card)
    _fed(feed, [*range(1, 40), 0])
    assert feed.overtaken == 0


def test_a_sink_that_fails_is_left_out_and_told(card: ModelCard) -> None:
    """The run and the other sinks go on."""
    failing = Recorder(in_order=True, fail_at=2, error=SkylaneError("disk full"))
    healthy = Recorder(in_order=True)
    feed = SinkFeed([failing, healthy], card)
    _fed(feed, list(range(30)))
    assert failing.got == [0, 1]
    assert healthy.got == list(range(30))
    assert [str(fault) for fault in feed.faults] == ["disk full"]
    assert failing.is_closed
    assert healthy.is_closed


def test_a_bug_in_a_sink_keeps_the_receiver_from_nothing(card: ModelCard) -> None:
    """The thread ends with its traceback, and whoever feeds it is not kept waiting for ever."""
    feed = SinkFeed([Recorder(in_order=True, fail_at=0, error=ZeroDivisionError())], card)
    raised: list[type[BaseException]] = []

    def run() -> None:
        try:
            feed.run()
        except ZeroDivisionError as error:
            raised.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    putting = threading.Thread(target=_put_many, args=(feed,))
    putting.start()
    putting.join(WAIT_S)
    assert not putting.is_alive()
    thread.join(WAIT_S)
    assert raised == [ZeroDivisionError]


def _put_many(feed: SinkFeed) -> None:
    for sequence in range(200):
        feed.put(_journey(sequence), ANSWER, _answered(sequence).result)
    feed.end()


def test_without_sinks_no_picture_is_kept(card: ModelCard) -> None:
    """Nothing beside what is measured."""
    put: Callable[..., None] = SinkFeed([], card).put
    for sequence in range(200):
        put(_journey(sequence), ANSWER, _answered(sequence).result)


def test_sinks_get_what_the_model_saw_wherever_it_was_resized(card: ModelCard) -> None:
    """A mask laid on the whole frame, where the model saw its middle, would lie beside everything in it."""
    got: list[Answered] = []

    class Keeper(Recorder):
        def write(self, answered: Answered) -> None:
            got.append(answered)

    feed = SinkFeed([Keeper(in_order=True)], card)
    journey = _journey(0)
    frame = np.random.default_rng(5).integers(0, 256, (2 * HEIGHT, 3 * WIDTH, 3), np.uint8)
    journey.picture, journey.geometry = frame, plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
    feed.put(journey, ANSWER, _answered(0).result)
    feed.end()
    feed.run()
    np.testing.assert_array_equal(got[0].picture, apply(frame, journey.geometry))
    assert (got[0].model_version, got[0].engine) == ("3", "tensorflow fp32")
