"""Due times of a playback that a user pauses, steps through or speeds up."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from edge.pacing import Timeline
from shared import clock

MS = 1_000_000
HOUR_NS = 3600 * 10**9
WAIT_S = 60.0


@pytest.fixture
def waiting() -> Callable[[Timeline, int], "int | None"]:
    """Waits for an offset with a limit, so that a mistake fails instead of hanging."""

    def wait(timeline: Timeline, offset_ns: int) -> int | None:
        stop = threading.Event()
        limit = threading.Timer(WAIT_S, stop.set)
        limit.start()
        try:
            return timeline.wait_until(offset_ns, stop)
        finally:
            limit.cancel()

    return wait


def test_nothing_changes_without_a_user(waiting: Callable[[Timeline, int], int]) -> None:
    """Due times are the start plus the offset to the nanosecond, also of frames that are late."""
    timeline = Timeline()
    start_ns = waiting(timeline, 7)
    offsets = [8, 9 * MS + 1, 9 * MS + 2, 20 * MS]
    assert [waiting(timeline, each) - start_ns for each in offsets] == [each - 7 for each in offsets]
    assert timeline.notes == []


def test_a_pause_moves_all_later_due_times_by_its_length(waiting: Callable[[Timeline, int], int]) -> None:
    """The distances between frames stay; the frames after the pause are not late."""
    timeline = Timeline()
    start_ns = waiting(timeline, 0)
    timeline.toggle_pause()
    (note,) = timeline.notes  # Of a run that ends in the pause.
    assert "paused once" in note
    before_ns = clock.now_ns()
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(waiting, timeline, 30 * MS)
        threading.Event().wait(0.3)
        assert not later.done()
        timeline.toggle_pause()
        due_ns = later.result()
    assert due_ns - start_ns >= 300 * MS + 30 * MS - (before_ns - start_ns)
    assert waiting(timeline, 50 * MS) - due_ns == 20 * MS
    (note,) = timeline.notes
    assert "paused once" in note


def test_steps_are_due_now_and_the_pause_goes_on(waiting: Callable[[Timeline, int], int]) -> None:
    """A frame an hour later comes at once; the frame after the pause keeps its distance to it."""
    timeline = Timeline()
    start_ns = waiting(timeline, 0)
    timeline.step()  # Without a pause it does nothing.
    timeline.toggle_pause()
    timeline.step()
    timeline.step()
    stepped = [waiting(timeline, HOUR_NS), waiting(timeline, 2 * HOUR_NS)]
    assert timeline.is_paused
    assert start_ns <= stepped[0] <= stepped[1] <= clock.now_ns()
    timeline.toggle_pause()
    resumed_ns = clock.now_ns()
    assert waiting(timeline, 2 * HOUR_NS + 5 * MS) - resumed_ns <= 5 * MS


def test_the_speed_divides_what_is_left(waiting: Callable[[Timeline, int], int]) -> None:
    """Each change is in the notes; the limits hold."""
    timeline = Timeline()
    start_ns = waiting(timeline, 0)
    for _ in range(10):
        timeline.faster()
    assert timeline.speed == 64
    assert waiting(timeline, 6400 * MS) - start_ns < 6400 * MS
    assert waiting(timeline, 6464 * MS) - waiting(timeline, 6400 * MS) == MS
    for _ in range(20):
        timeline.slower()
    assert timeline.speed == 1 / 64
    (note,) = timeline.notes
    assert note.startswith("the user changed the speed: ×2, ×4, ×8")


def test_a_stop_ends_every_wait() -> None:
    """Also in a pause, and for frames without a schedule."""
    timeline, stop = Timeline(), threading.Event()
    timeline.toggle_pause()
    with ThreadPoolExecutor(2) as pool:
        due, unpaused = pool.submit(timeline.wait_until, 0, stop), pool.submit(timeline.wait_while_paused, stop)
        stop.set()
        assert due.result(WAIT_S) is None
        unpaused.result(WAIT_S)


def test_frames_without_a_schedule_wait_for_a_step_or_the_end_of_the_pause() -> None:
    """A closed loop has no due times."""
    timeline, stop = Timeline(), threading.Event()
    timeline.wait_while_paused(stop)
    timeline.toggle_pause()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(timeline.wait_while_paused, stop)
        timeline.step()
        first.result(WAIT_S)
        second = pool.submit(timeline.wait_while_paused, stop)
        timeline.toggle_pause()
        second.result(WAIT_S)
