"""Optical flow from tick to tick: what is known about the motion since a result's frame, and when nothing is."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from edge.presenting.flow import (
    FlowSize,
    FlowSizeChoice,
    FlowTrack,
    Motion,
    Search,
    held_where_still,
    pixel_displacement,
    refined,
)
from edge.presenting.presenter import Tick
from shared.imaging.geometry import Resize, plan
from shared.imaging.opencv import cv2
from tests.support.moving_camera import HEIGHT, PERIOD_NS, WIDTH, MovingCamera

_BUDGET_NS = 50_000_000  # Time limit of the flow of one tick.


def _track(places: list[tuple[int, int]]) -> FlowTrack:
    """Returns the track of a camera that was at these places, one a tick."""
    camera, track = MovingCamera(), FlowTrack()
    for number, (x, y) in enumerate(places):
        track.add(camera.tick(number, x, y))
    return track


def _shift(motion: Motion | None) -> list[float]:
    """Returns the median displacement in pixels of the model's input."""
    assert motion is not None
    scale = HEIGHT / motion.now.shape[0]
    return [round(float(value) * scale, 1) for value in np.median(motion.displacement, axis=(0, 1))]


def test_the_motion_of_one_step_is_that_of_the_camera() -> None:
    """A camera that moved 5 pixels to the right saw each point 5 pixels further right before."""
    assert _shift(_track([(0, 0), (5, -3)]).motion_since(0)) == pytest.approx([5, -3], abs=0.2)


def test_steps_add_up() -> None:
    """Motion is chained from tick to tick, whichever result is asked for."""
    track = _track([(0, 0), (6, 0), (10, 4), (9, 8)])
    assert _shift(track.motion_since(0)) == pytest.approx([9, 8], abs=0.3)
    assert _shift(track.motion_since(PERIOD_NS)) == pytest.approx([3, 8], abs=0.3)
    assert _shift(track.motion_since(2 * PERIOD_NS)) == pytest.approx([-1, 4], abs=0.3)


def test_a_result_that_stays_the_newest_is_moved_on() -> None:
    """During an outage each tick adds one step to the motion of the same result; it equals the whole chain."""
    camera, steady, fresh = MovingCamera(), FlowTrack(), FlowTrack()
    for number in range(6):
        tick = camera.tick(number, 4 * number)
        steady.add(tick)
        fresh.add(tick)
        motion = steady.motion_since(0)
    assert _shift(motion) == pytest.approx([20, 0], abs=0.3)
    whole = fresh.motion_since(0)
    assert motion is not None
    assert whole is not None
    centre = (slice(12, -12), slice(12, -12))  # At the border, both guess.
    np.testing.assert_allclose(motion.displacement[centre], whole.displacement[centre], atol=0.1)


def test_a_repeated_image_and_the_present_tick_do_not_move() -> None:
    """A camera that repeats a frame after a movement stands still."""
    track = _track([(0, 0), (8, 0), (8, 0)])
    assert _shift(track.motion_since(PERIOD_NS)) == pytest.approx([0, 0], abs=0.1)
    present = track.motion_since(2 * PERIOD_NS)
    assert present is not None
    assert not present.displacement.any()


def test_a_result_of_a_skipped_tick_is_moved_by_its_part_of_the_step() -> None:
    """The presenter may miss a tick whose frame was sent and answered."""
    camera, track = MovingCamera(), FlowTrack()
    for number in (0, 1, 3):
        track.add(camera.tick(number, 4 * number))
    assert _shift(track.motion_since(2 * PERIOD_NS)) == pytest.approx([4, 0], abs=0.2)
    track.add(camera.tick(4, 16))
    assert _shift(track.motion_since(2 * PERIOD_NS)) == pytest.approx([8, 0], abs=0.3)


def test_the_memory_of_motion_ends() -> None:
    """A result from before the ring of steps cannot be moved, whether or not it was asked for in time."""
    track = _track([(0, 0)] * 64)
    assert track.motion_since(0) is not None
    later = _track([(0, 0)] * 65)
    assert later.motion_since(0) is None
    assert later.motion_since(PERIOD_NS) is not None
    assert _track([(0, 0)] * 2).motion_since(-1) is None


def test_a_large_input_has_a_shorter_memory() -> None:
    """The images and flows of one camera take about 64 MB at most."""
    track, geometry = FlowTrack(), plan(Resize.STRETCH, 1216, 1936, 1216, 1936)
    image = np.zeros((1216, 1936, 3), np.uint8)
    for number in range(40):
        track.add(Tick(number, number * PERIOD_NS, image, geometry))
    assert track.motion_since(0) is None
    assert track.motion_since(10 * PERIOD_NS) is not None


@pytest.mark.parametrize("change", ["size", "geometry", "backward", "gap"])
def test_a_camera_that_changes_starts_anew(change: str) -> None:
    """Motion across such a change would be made up; afterwards it is known again."""
    camera, track = MovingCamera(), FlowTrack()
    for number in range(3):
        track.add(camera.tick(number, 0))
    start_ns = {"backward": 50, "gap": 3 * PERIOD_NS + 2 * 10**9}.get(change, 3 * PERIOD_NS)
    for number in range(3, 5):
        tick = camera.tick(number, 0, due_ns=start_ns + number - 3)
        if change == "size":
            tick = replace(tick, image=tick.image[:-16], geometry=plan(Resize.STRETCH, 9, 9, HEIGHT - 16, WIDTH))
        elif change == "geometry":
            tick = replace(tick, geometry=plan(Resize.CROP, HEIGHT, 2 * WIDTH, HEIGHT, WIDTH))
        track.add(tick)
        assert track.motion_since(2 * PERIOD_NS if change != "backward" else 20) is None
    assert track.motion_since(start_ns) is not None


def test_a_picture_that_is_too_small_has_no_flow() -> None:
    """Optical flow needs some pixels to compare."""
    camera, track = MovingCamera(), FlowTrack()
    for number in range(2):
        tick = camera.tick(number, 0)
        track.add(replace(tick, image=tick.image[:8, :12], geometry=plan(Resize.STRETCH, 8, 12, 8, 12)))
    assert track.motion_since(0) is None


def test_without_a_clock_the_largest_size_is_used() -> None:
    """Offline, the same ticks give the same outputs on every machine."""
    tracks = [_track([(0, 0), (3, 1), (7, 2)]) for _ in range(2)]
    assert [track.size for track in tracks] == [FlowSize.QUARTER] * 2
    first, second = (track.motion_since(0) for track in tracks)
    assert first is not None
    assert second is not None
    assert np.array_equal(first.displacement, second.displacement)


def test_flow_that_takes_too_long_becomes_smaller_and_ends() -> None:
    """The size falls until results are held; the smaller flow is still right, also across a change of the size."""
    camera, track = MovingCamera(), FlowTrack(_slow_clock(), FlowSize.FULL)
    sizes = []
    for number in range(30):
        track.add(camera.tick(number, 4 * number))
        motion = track.motion_since(max(0, number - 2) * PERIOD_NS)
        sizes.append(track.size)
        if track.size is FlowSize.NONE:
            assert motion is None
        elif number > 1:
            assert _shift(motion) == pytest.approx([8, 0], abs=0.5)
    assert list(dict.fromkeys(sizes)) == list(FlowSize)


@pytest.mark.parametrize("largest", [FlowSize.FULL, FlowSize.HALF, FlowSize.QUARTER])
def test_the_motion_of_pixels_is_refined_in_full_size(largest: FlowSize) -> None:
    """A mask is moved by the motion of its own pixels, not by that of a coarser grid."""
    camera, track = MovingCamera(), FlowTrack(largest=largest)
    for number in range(3):
        track.add(camera.tick(number, 5 * number, -3 * number))
    motion = track.motion_since(0)
    assert motion is not None
    assert motion.whole is not None
    assert motion.whole.now.shape == (HEIGHT, WIDTH)
    displacement = pixel_displacement(motion, (HEIGHT, WIDTH))
    is_right = np.abs(displacement - (10, -6)).max(axis=-1) < 1
    assert is_right[32:-32, 32:-32].mean() > 0.99


def test_the_motion_to_a_time_between_ticks_is_not_refined() -> None:
    """There is no picture of that time to compare with."""
    track, camera = FlowTrack(), MovingCamera()
    for number in (0, 1, 3):
        track.add(camera.tick(number, 4 * number))
    between, known = track.motion_since(2 * PERIOD_NS), track.motion_since(PERIOD_NS)
    assert between is not None
    assert known is not None
    assert between.whole is None
    assert known.whole is not None


def test_a_point_takes_the_motion_that_fits() -> None:
    """A thin object keeps its own motion if a neighbour of each of its points has it; a small error is mended."""
    then = np.full((64, 64), 100, np.uint8)
    then[:, 20:22] = 200
    now = np.roll(then, 9, axis=1)
    displacement = np.zeros((64, 64, 2), np.float32)
    displacement[:, 33:35, 0] = -8
    best = refined(displacement, then, now, Search(neighbours=(4,), shifts=(1,), interpolation=cv2.INTER_NEAREST))
    assert (best[:, 29:31, 0] == -9).all()
    assert (best[:, 5:10] == 0).all()


def test_what_stands_still_is_held() -> None:
    """The vehicle's own bonnet does not move with the road around it."""
    then = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
    now = np.roll(then, 5, axis=1)
    now[40:] = then[40:]
    held = held_where_still(np.full((64, 64, 2), (-5, 0), np.float32), then, now)
    assert not held[46:].any()
    assert (held[8:34, 12:, 0] == -5).all()


def test_a_size_that_fits_stays() -> None:
    """Neither a single slow tick nor a size near its budget changes the size."""
    choice = FlowSizeChoice()
    for number in range(200):
        choice.took(_BUDGET_NS * 5 if number % 7 == 0 else _BUDGET_NS * 9 // 10, 10 * _BUDGET_NS)
    assert choice.size is FlowSize.QUARTER


def test_the_budget_is_a_share_of_the_time_between_ticks() -> None:
    """At 100 Hz, flow that would be fast enough for 10 Hz is too slow."""
    slow, fast = FlowSizeChoice(), FlowSizeChoice()
    for _ in range(5):
        slow.took(12_000_000, PERIOD_NS)
        fast.took(12_000_000, PERIOD_NS // 10)
    assert (slow.size, fast.size) == (FlowSize.QUARTER, FlowSize.EIGHTH)


def test_a_larger_size_is_tried_ever_more_rarely() -> None:
    """A machine that is always too slow does not waste time on tries; one that was busy for a while recovers."""
    choice = FlowSizeChoice()
    sizes = [_took(choice, is_slow=choice.size is FlowSize.QUARTER) for _ in range(2000)]
    tries = [number for number, change in enumerate(pairwise(sizes)) if change == (FlowSize.EIGHTH, FlowSize.QUARTER)]
    waits = np.diff(tries)
    assert len(waits) >= 3
    assert all(later > earlier for earlier, later in pairwise(waits))
    for _ in range(1000):
        _took(choice, is_slow=False)
    assert choice.size is FlowSize.QUARTER


def _took(choice: FlowSizeChoice, *, is_slow: bool) -> FlowSize:
    choice.took(_BUDGET_NS * 2 if is_slow else _BUDGET_NS // 10, PERIOD_NS)
    return choice.size


def _slow_clock() -> Callable[[], int]:
    """Returns a clock on which each flow takes 30 ms."""
    return iter(range(0, 10**15, 30_000_000)).__next__
