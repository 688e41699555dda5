"""The difference detector."""

import itertools
import threading

import numpy as np
import pytest

from shared.imaging.frames import Layout
from shared.reuse.gate import (
    METHODS,
    SIDE,
    DifferenceGate,
    GateComparison,
    GateSettings,
    SmallImage,
    changed_pixels,
    distance,
    mean_squared_difference,
    small_grey,
)

FORM = (608, 968, "rgb8")
MS = 1_000_000


def _gate(threshold: float = 4.0, frames: int = 100, ms: float = 1e6, method: str = "mse") -> DifferenceGate[str]:
    return DifferenceGate(GateSettings(method, threshold, frames, ms))


def _level(grey: int) -> SmallImage:
    return np.full((SIDE, SIDE), grey, np.uint8)


def _compare(gate: DifferenceGate[str], sequence: int, grey: int = 0, camera: str = "left") -> GateComparison[str]:
    return gate.compare(camera, FORM, _level(grey), sequence=sequence, time_ns=sequence * 100 * MS)


def _kept(gate: DifferenceGate[str], sequence: int, grey: int = 0) -> GateComparison[str]:
    compared = _compare(gate, sequence, grey)
    gate.keep(compared, f"result {sequence}")
    return compared


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("size", [(608, 968), (305, 485), (40, 60), (1216, 1936)])
def test_a_small_image_has_the_grey_level_of_the_image(layout: Layout, size: tuple[int, int]) -> None:
    """This holds for every layout, size and depth of colour."""
    level = 120 * (257 if layout.dtype == np.uint16 else 1)
    small = small_grey(np.full(layout.shape(*size), level, layout.dtype), layout)
    assert small.shape == (SIDE, SIDE)
    assert small.dtype.name == "uint8"
    np.testing.assert_array_equal(small, 120)


def test_a_small_image_is_the_mean_of_its_areas() -> None:
    """Here each small pixel covers 8×12 pixels exactly, so the mean is known; halving may round twice."""
    generator = np.random.default_rng(1)
    rgb = generator.integers(0, 256, (8 * SIDE, 12 * SIDE, 3), np.uint8)
    luma = rgb @ np.array([0.299, 0.587, 0.114])
    exact = luma.reshape(SIDE, 8, SIDE, 12).mean(axis=(1, 3))
    assert np.abs(small_grey(rgb, Layout.RGB8) - exact).max() <= 1.5
    assert np.array_equal(small_grey(rgb, Layout.RGB8), small_grey(rgb[..., ::-1].copy(), Layout.BGR8))


def test_distances() -> None:
    """`mse` is in squared grey levels, `pixels` in percent; a difference of 16 levels does not count yet."""
    one, other = _level(100), _level(100)
    assert [distance(method, one, other) for method in METHODS] == [0, 0]
    other[0] = 116
    assert mean_squared_difference(one, other) == pytest.approx(256 / SIDE)
    assert changed_pixels(one, other) == 0
    other[0] = 117
    assert changed_pixels(one, other) == changed_pixels(other, one) == 100 / SIDE
    assert mean_squared_difference(_level(0), _level(255)) == 255**2
    assert changed_pixels(_level(255), _level(0)) == 100


def test_the_first_frame_has_nothing_to_reuse() -> None:
    """Nor has any frame before a result is present."""
    gate = _gate()
    first, second = _compare(gate, 0), _compare(gate, 1)
    assert (first.distance, first.reused, second.distance, second.reused) == (None, None, None, None)


def test_the_latest_result_is_reused_up_to_the_threshold() -> None:
    """The distance of frames beyond it is reported too."""
    gate = _gate(threshold=4)
    _kept(gate, 0, 50)
    near, far = _compare(gate, 1, 52), _compare(gate, 2, 53)
    assert near.reused is not None
    assert (near.reused.sequence, near.reused.result, near.distance) == (0, "result 0", 4)
    assert (far.reused, far.distance) == (None, 9)


def test_small_differences_do_not_add_up() -> None:
    """A reused result is not kept, so a slow change is noticed."""
    gate = _gate(threshold=4)
    _kept(gate, 0, 50)
    decisions = [_compare(gate, number, 50 + number).reused is not None for number in range(1, 5)]
    assert decisions == [True, True, False, False]


def test_a_result_of_an_older_frame_does_not_replace_a_later_ones() -> None:
    """Results of several workers arrive in any order."""
    gate = _gate()
    one, two = _compare(gate, 0), _compare(gate, 1)
    gate.keep(two, "two")
    gate.keep(one, "one")
    reused = _compare(gate, 2).reused
    assert reused is not None
    assert reused.result == "two"


def test_a_result_is_reused_for_a_number_of_frames() -> None:
    """Frames of other cameras do not count."""
    gate = _gate(frames=2)
    _kept(gate, 0)
    _compare(gate, 1, camera="right")
    assert [_compare(gate, number).reused is not None for number in range(2, 6)] == [True, True, False, False]


def test_a_result_is_reused_for_a_time() -> None:
    """Here for 200 ms, at 100 ms a frame."""
    gate = _gate(ms=200)
    _kept(gate, 0)
    assert [_compare(gate, number).reused is not None for number in range(1, 5)] == [True, True, False, False]


def test_a_frame_can_be_compared_again() -> None:
    """While it waited, the result of an earlier frame arrived; the frame still counts once."""
    gate = _gate(frames=1)
    earlier, waiting = _compare(gate, 0), _compare(gate, 1)
    assert gate.compare_again(waiting).distance is None
    gate.keep(earlier, "arrived")
    reused = gate.compare_again(waiting).reused
    assert reused is not None
    assert reused.result == "arrived"


def test_each_camera_has_its_own_result() -> None:
    """Two cameras may look at the same wall."""
    gate = _gate()
    _kept(gate, 0)
    assert _compare(gate, 1, camera="right").distance is None


def test_another_size_or_encoding_discards_the_result() -> None:
    """Also a result that arrives later, for a frame of the old size."""
    gate = _gate()
    _kept(gate, 0)
    pending = _compare(gate, 1, grey=200)
    for number, form in enumerate(((304, 484, "rgb8"), (304, 484, "bgr8")), start=2):
        changed = gate.compare("left", form, _level(0), sequence=number, time_ns=number * MS)
        assert (changed.distance, changed.reused) == (None, None)
        assert gate.resets == number - 1
    gate.keep(pending, "of the old size")
    assert gate.compare("left", form, _level(200), sequence=9, time_ns=9 * MS).distance is None
    assert gate.resets == 2


def test_threads_may_share_a_gate() -> None:
    """Frames are compared in one thread, and results arrive in others; each reused result is one that was kept."""
    gate = _gate(threshold=0, frames=10**9, ms=1e12)
    arriving = [_compare(gate, sequence) for sequence in range(200)]
    seen: list[tuple[int, str]] = []

    def keep(part: list[GateComparison[str]]) -> None:
        for compared in part:
            gate.keep(compared, f"result {compared.sequence}")

    def compare() -> None:
        for sequence in itertools.count(200):
            reused = _compare(gate, sequence).reused
            if reused is not None:
                seen.append((reused.sequence, reused.result))
                if reused.sequence == 199:
                    return

    threads = [threading.Thread(target=keep, args=(arriving[start::4],)) for start in range(4)]
    threads.append(threading.Thread(target=compare))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[-1][0] == 199
    assert sorted(seen) == seen
    assert all(result == f"result {sequence}" for sequence, result in seen)
