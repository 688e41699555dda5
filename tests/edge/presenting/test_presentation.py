"""The presentation: one output or reason per tick, whatever the presenter, the camera and the results do."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest

from edge.config import EdgeConfig
from edge.pipeline import PreparedImage
from edge.presenting.presentation import (
    CAMERA_CHANGED,
    HUNG,
    NO_RESULT,
    SKIPPED,
    STOPPED,
    TOO_OLD,
    Presentation,
)
from edge.presenting.presenter import ArrivedResult, HoldPresenter, Output, PresenterParts, Tick
from edge.sinks.sink import PresentedTick
from shared import clock
from shared.imaging import geometry
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.messages.results import ModelResult
from shared.runlog.latency_log import Outcome
from shared.runlog.presented_log import OutputOrigin
from tests.edge.samples import CARD, HEIGHT, WIDTH, make_frame, make_record

WAIT_S = 60.0
PERIOD_NS = 100_000_000  # Time between two frames of the cameras here.


class Noting:
    """Holds the newest result, and notes the ticks; `act` runs in the presenter's thread."""

    def __init__(self, act: Callable[[Tick], None] = lambda _: None) -> None:
        self.act = act
        self.built = 0
        self.ticks: list[Tick] = []

    def build(self) -> "Noting":
        """Returns the presenter of a camera, here always the same one."""
        self.built += 1
        return self

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        self.ticks.append(tick)
        self.act(tick)
        return HoldPresenter(PresenterParts(CARD)).present(tick, newest)


class Blocked(Noting):
    """Does not return from one tick until it is released."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(self._block)
        self.reached, self.released = threading.Event(), threading.Event()
        self._at = at

    def _block(self, tick: Tick) -> None:
        if tick.sequence == self._at:
            self.reached.set()
            assert self.released.wait(WAIT_S)


def _missing(tick: PresentedTick) -> str:
    """Returns the reason of a tick without an output."""
    assert (tick.origin, tick.result) == (OutputOrigin.NONE, None)
    return tick.reason


class Rig:
    """A presentation that runs; the test is the pacer and the receiver."""

    def __init__(
        self,
        presenter: Noting | None = None,
        *,
        card: Any = CARD,
        runs_local: bool = False,
        hang_s: float = WAIT_S,
        **keys: Any,
    ) -> None:
        self.presenter = presenter or Noting()
        config = EdgeConfig(**{"present": "hold", **keys})
        self.presentation = Presentation(self.presenter.build, card, config, runs_local=runs_local, hang_s=hang_s)
        self.presented: list[PresentedTick] = []
        self.presentation.listeners.append(self._note)
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self.presentation.run, name="presenter")
        self._sequence = 0

    def offer(self, frame: Frame | UnreadableFrame | None = None, *, camera: str = "/left", **changes: Any) -> int:
        """Makes a frame due and returns its sequence number; `changes`: those of the frame."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        given = frame or replace(make_frame(sequence, camera), **{"stamp_ns": sequence * PERIOD_NS} | changes)
        record = make_record(sequence, sequence * PERIOD_NS, given.camera)
        record.row.frame_stamp_ns = given.stamp_ns
        self.presentation.offer(record, given)
        return sequence

    def answer(self, sequence: int, outcome: Outcome = Outcome.ANSWERED, camera: str = "/left") -> Any:
        """Lets the result of a frame arrive; returns it."""
        result = np.full((HEIGHT, WIDTH), sequence % 2, np.uint8)
        record = make_record(sequence, sequence * PERIOD_NS, camera)
        record.row.outcome = outcome
        self.presentation.ended(record, ModelResult(result, "1", "test"))
        return result

    def tick(self, *args: Any, **changes: Any) -> PresentedTick:
        """Makes a frame due and returns what is presented for it."""
        return self.wait_for(self.offer(*args, **changes))

    def wait_for(self, sequence: int) -> PresentedTick:
        """Waits until a tick is presented."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(each.sequence == sequence for each in self.presented), WAIT_S)
        return next(each for each in self.presented if each.sequence == sequence)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the thread after the ticks that wait."""
        self.presentation.end()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()

    def reasons(self) -> list[tuple[int, str]]:
        """Returns the ticks in the order in which they were presented, with their reasons."""
        return [(tick.sequence, tick.reason) for tick in self.presented]

    def _note(self, tick: PresentedTick) -> None:
        with self._changed:
            self.presented.append(tick)
            self._changed.notify_all()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Returns a running presentation that holds the newest result."""
    with Rig() as made:
        yield made
    made.presentation.close()
    assert len({tick.sequence for tick in made.presented}) == len(made.presented)  # One row each.


def test_the_newest_result_is_presented_with_its_age(rig: Rig) -> None:
    """A result of an earlier frame that arrives later is not newer."""
    assert _missing(rig.tick()) == NO_RESULT
    rig.offer()
    newest = rig.answer(1)
    rig.answer(0)
    tick = rig.tick()
    assert tick.result is newest
    assert (tick.origin, tick.reason) == (OutputOrigin.REMOTE, "")
    assert (tick.source_sequence, tick.age_ns) == (1, PERIOD_NS)
    assert (tick.frame_index, tick.stamp_ns, tick.due_ns) == (2, 2 * PERIOD_NS, 2 * PERIOD_NS)
    assert tick.processing_ns is not None
    assert tick.processing_ns >= 0


def test_a_result_that_is_too_old_is_not_presented(rig: Rig) -> None:
    """The vehicle must not act on the past for ever; the default limit is 2 s."""
    rig.tick()
    rig.answer(0)
    ticks = [rig.tick() for _ in range(22)]
    assert [tick.reason for tick in ticks[-3:]] == ["", TOO_OLD, TOO_OLD]
    assert [tick.age_ns for tick in ticks[:2]] == [PERIOD_NS, 2 * PERIOD_NS]
    assert (ticks[-1].age_ns, ticks[-1].source_sequence) == (None, None)


def test_a_presenter_that_is_too_slow_skips_ticks() -> None:
    """Offers and arrivals go on while the presenter works; every tick has its row, in order, and frames are not kept."""
    blocked = Blocked()
    with Rig(blocked) as rig:
        rig.offer()
        assert blocked.reached.wait(WAIT_S)
        for _ in range(4):
            rig.answer(rig.offer())
        assert rig.presented == []
        blocked.released.set()
    assert rig.reasons() == [(0, NO_RESULT), (1, SKIPPED), (2, SKIPPED), (3, SKIPPED), (4, "")]
    assert [tick.sequence for tick in rig.presenter.ticks] == [0, 4]
    assert [tick.processing_ns is None for tick in rig.presented] == [False, True, True, True, False]
    assert rig.presented[4].source_sequence == 4


def test_a_presenter_that_hangs_costs_neither_rows_nor_memory() -> None:
    """Beyond a limit, the rows of skipped ticks are written by the pacer; the end of the run writes the others."""
    blocked, count = Blocked(), 3000
    rig = Rig(blocked)
    rig.thread.start()
    rig.offer()
    assert blocked.reached.wait(WAIT_S)
    for _ in range(count - 1):
        rig.offer()
    assert len(rig.presented) > count / 2
    rig.presentation.end()
    rig.presentation.close()
    assert sorted(sequence for sequence, _ in rig.reasons()) == list(range(count))
    assert {sequence for sequence, reason in rig.reasons() if reason == STOPPED} == {0, count - 1}
    blocked.released.set()
    rig.thread.join(WAIT_S)
    assert len(rig.presented) == count


@pytest.mark.parametrize("ticks", [1, 4, 3000])
def test_ticks_that_a_presenter_costs_by_hanging_are_named_so(ticks: int) -> None:
    """They were not skipped by a presenter that is too slow, whose remedy is a lower rate."""
    blocked = Blocked(at=1)
    rig = Rig(blocked, hang_s=0.0)
    rig.thread.start()
    rig.answer(rig.tick().sequence)
    rig.offer()
    assert blocked.reached.wait(WAIT_S)
    assert rig.presentation.hangs
    for _ in range(ticks - 1):
        rig.offer()
    rig.presentation.end()
    rig.presentation.close()
    blocked.released.set()
    rig.thread.join(WAIT_S)
    assert sorted(rig.reasons()) == [(0, NO_RESULT), *((sequence, HUNG) for sequence in range(1, ticks + 1))]


def test_a_tick_is_presented_after_its_frame_was_sent() -> None:
    """Both would need a core at the same moment, and the frame would be sent later than without a presenter."""
    record = make_record(0, clock.now_ns() + 3600 * 10**9)  # The presenter waits until a time after it was due.
    sent, was_sent = threading.Event(), []
    with Rig(Noting(lambda _: was_sent.append(sent.is_set()))) as rig:
        rig.presentation.offer(record, make_frame(0, "/left"))
        sent.set()
        rig.presentation.images.passed("/left", 0)
    assert was_sent == [True]


def test_the_image_of_the_pipeline_is_presented_if_it_has_prepared_the_frame(rig: Rig) -> None:
    """Demosaicing a frame twice would cost the vehicle milliseconds; the image of an earlier frame would be wrong."""
    plan = geometry.plan(CARD.resize, HEIGHT, WIDTH, HEIGHT, WIDTH)
    for sequence in (0, 2):
        image = np.full((HEIGHT, WIDTH, 3), 7 + sequence, np.uint8)
        rig.presentation.images.add("/left", PreparedImage(sequence, image, plan))
        rig.presentation.images.passed("/left", sequence)
        rig.tick()
        rig.tick()
    assert [int(tick.image.max()) == 7 + tick.sequence for tick in rig.presenter.ticks] == [True, False, True, False]


def test_each_camera_has_its_own_presenter_and_results() -> None:
    """A slow tick of one camera replaces no tick of another one."""
    blocked = Blocked()
    with Rig(blocked) as rig:
        rig.offer(camera="/left")
        assert blocked.reached.wait(WAIT_S)
        rig.offer(camera="/right")
        rig.offer(camera="/left")
        result = rig.answer(1, camera="/right")
        blocked.released.set()
    assert rig.reasons() == [(0, NO_RESULT), (1, ""), (2, NO_RESULT)]
    assert rig.presented[1].result is result
    assert rig.presenter.built == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"pixels": np.zeros((HEIGHT * 2, WIDTH * 2, 3), np.uint8)},
        {"layout": Layout.BGR8},
        {"stamp_ns": 0},
        {"stamp_ns": 2 * PERIOD_NS + 2_000_000_001},
    ],
    ids=["size", "layout", "backwards", "jump"],
)
def test_a_camera_that_changes_starts_anew(rig: Rig, changes: dict[str, Any]) -> None:
    """Results of before show another scene; those of frames since the change count again."""
    for _ in range(3):
        rig.answer(rig.tick().sequence)
    assert rig.presenter.built == 1
    changed = rig.tick(**changes)
    assert _missing(changed) == CAMERA_CHANGED
    assert (rig.presenter.built, rig.presentation.restarts) == (2, 1)
    rig.answer(changed.sequence)
    changes = {**changes, "stamp_ns": changes["stamp_ns"] + PERIOD_NS} if "stamp_ns" in changes else changes
    assert rig.tick(**changes).source_sequence == changed.sequence
    assert rig.presentation.restarts == 1


def test_a_change_during_a_skipped_tick_counts() -> None:
    """The presenter has seen neither the skipped frame nor its stamp."""
    blocked = Blocked(at=1)
    with Rig(blocked) as rig:
        rig.tick()
        rig.answer(0)
        rig.offer()
        assert blocked.reached.wait(WAIT_S)
        rig.offer(stamp_ns=60 * 10**9)
        rig.offer(stamp_ns=60 * 10**9 + PERIOD_NS)
        blocked.released.set()
    assert rig.reasons() == [(0, NO_RESULT), (1, ""), (2, SKIPPED), (3, CAMERA_CHANGED)]


def test_a_slow_camera_does_not_change(rig: Rig) -> None:
    """Frames of a time-lapse are further apart than a jump, but evenly."""
    for number in range(5):
        rig.answer(rig.tick(stamp_ns=number * 60 * 10**9).sequence)
    assert rig.presentation.restarts == 1  # The first gap cannot be told from a jump.
    assert rig.presented[-1].source_sequence == 3


def test_repeated_and_undecodable_frames_are_ticks(rig: Rig) -> None:
    """A frame with the stamp of the one before is presented; one that nobody can read has its reason."""
    rig.answer(rig.tick().sequence)
    assert rig.tick(stamp_ns=0).source_sequence == 0
    unreadable = rig.tick(UnreadableFrame("/left", 2, 2 * PERIOD_NS, 0, 0, "the file is cut off"))
    assert _missing(unreadable) == "undecodable: the file is cut off"
    wrong = rig.tick(pixels=np.zeros((1, 1), np.uint8), layout=Layout.BAYER_RGGB8)
    assert wrong.reason.startswith("undecodable: ")
    assert rig.tick().reason in ("", CAMERA_CHANGED)
    assert rig.presentation.restarts == 2  # To the wrong size and back.


class Failing(Noting):
    """Raises at the second tick, or returns what is no output."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Any:
        """See Presenter."""
        if tick.sequence != 1:
            return super().present(tick, newest)
        if self._error is not None:
            raise self._error
        return None


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ZeroDivisionError("a bug"), "failed: a bug"), (None, "failed: NoneType is no Output")],
    ids=["raises", "no output"],
)
def test_a_presenter_that_fails_is_built_anew(error: Exception | None, reason: str) -> None:
    """The tick has a reason; the run goes on."""
    with Rig(Failing(error)) as rig:
        rig.answer(rig.tick().sequence)
        assert _missing(rig.tick()) == reason
        assert rig.tick().source_sequence == 0
        assert rig.presenter.built == 2


def test_a_result_that_arrives_before_its_tick_is_not_used_earlier() -> None:
    """The pacer queues a frame for the pipeline first, and a worker may be fast: no output has a negative age."""
    blocked = Blocked()
    with Rig(blocked) as rig:
        rig.offer()
        assert blocked.reached.wait(WAIT_S)
        rig.offer()
        rig.answer(0)
        rig.answer(2)
        blocked.released.set()
        rig.wait_for(1)
        rig.tick()
    assert [tick.source_sequence for tick in rig.presented] == [None, 0, 2]


def test_local_answers_count_unless_the_presenter_runs_the_local_model() -> None:
    """A presenter with the local model would take its result for a worker's."""
    for runs_local, expected in ((False, (OutputOrigin.LOCAL, 0, PERIOD_NS)), (True, (OutputOrigin.NONE, None, None))):
        with Rig(runs_local=runs_local) as rig:
            rig.answer(rig.tick().sequence, Outcome.ANSWERED_LOCALLY)
            tick = rig.tick()
            assert (tick.origin, tick.source_sequence, tick.age_ns) == expected


def test_a_result_of_the_local_model_has_no_age() -> None:
    """It is right for the tick itself."""
    mask = np.zeros((4, 6), np.uint8)

    class Local(Noting):
        def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
            del tick, newest
            return Output(OutputOrigin.LOCAL, mask)

    with Rig(Local()) as rig:
        rig.answer(rig.tick().sequence)
        tick = rig.tick()
        assert tick.result is mask
        assert (tick.source_sequence, tick.age_ns) == (None, 0)


@pytest.mark.parametrize("layout", [Layout.RGB8, Layout.BGR8])
@pytest.mark.parametrize("resize_at", ["edge", "cloud"])
def test_the_presenter_sees_the_input_of_the_model_as_rgb(layout: Layout, resize_at: str) -> None:
    """Whatever the order of the model's colours, and whichever node resizes the frames that are sent."""
    with Rig(card=replace(CARD, layout=layout), resize_at=resize_at) as rig:
        pixels = np.zeros((2 * HEIGHT, 2 * WIDTH, 3), np.uint8)
        pixels[..., 0] = 200
        tick = rig.tick(pixels=pixels)
    assert tick.image is not None
    assert tick.geometry is not None
    np.testing.assert_array_equal(tick.image, np.full((HEIGHT, WIDTH, 3), (200, 0, 0), np.uint8))
    assert (tick.geometry.source_height, tick.geometry.target_height) == (2 * HEIGHT, HEIGHT)


def test_a_run_that_failed_still_has_a_row_for_every_tick() -> None:
    """The thread has not even started."""
    rig = Rig()
    rig.offer()
    rig.offer()
    rig.presentation.close()
    assert rig.reasons() == [(0, SKIPPED), (1, STOPPED)]
