"""Simulated vehicles."""

from collections.abc import Sequence

import numpy as np

from modelling.reuse.replay import Presented, ReplayedFrame, simulate
from shared.reuse.gate import SIDE, GateSettings
from shared.reuse.tuning import CascadeThresholds
from shared.task import Confidence

GATE = GateSettings("mse", 4.0, reuse_frames=3, reuse_ms=1000.0)
CASCADE = CascadeThresholds(0.1, 0.9)


def _frames(levels: Sequence[int], scores: Sequence[float] = (), drive: str = "one") -> list[ReplayedFrame]:
    return [
        ReplayedFrame(
            drive, (80, 120, "bayer_rggb8"), np.full((SIDE, SIDE), level, np.uint8), index * 100_000_000,
            Confidence(np.array([scores[index]], np.float32), two_sided=True) if scores else None,
        )
        for index, level in enumerate(levels)
    ]  # fmt: skip


def _answers(presented: list[Presented]) -> list[tuple[int, bool]]:
    return [(each.answered, each.is_local) for each in presented]


def test_without_gate_and_cascade_every_frame_is_sent() -> None:
    """A vehicle does so by default."""
    assert simulate(_frames([1, 1])) == [
        Presented(0, is_local=False, distance=None),
        Presented(1, is_local=False, distance=None),
    ]


def test_the_gate_reuses_the_latest_answer() -> None:
    """Up to the longest reuse of three frames."""
    presented = simulate(_frames([10, 11, 12, 13, 13, 13]), GATE)
    assert [each.answered for each in presented] == [0, 0, 0, 3, 3, 3]
    assert [each.distance for each in presented] == [None, 1, 4, 9, 0, 0]
    assert [each.answered for each in simulate(_frames([5] * 6), GATE)] == [0, 0, 0, 0, 4, 4]


def test_the_cascade_answers_where_it_is_sure() -> None:
    """Both of yes and of no."""
    presented = simulate(_frames([1, 1, 1], [0.95, 0.5, 0.05]), None, CASCADE)
    assert _answers(presented) == [(0, True), (1, False), (2, True)]


def test_the_gate_comes_before_the_cascade() -> None:
    """A local answer is reused like any other, with its origin."""
    presented = simulate(_frames([10, 10, 90, 90], [0.95, 0.5, 0.5, 0.95]), GATE, CASCADE)
    assert _answers(presented) == [(0, True), (0, True), (2, False), (2, False)]


def test_an_answer_is_reused_from_its_arrival_on() -> None:
    """Until then the frames that resemble it are sent too, as on a vehicle: no frame waits for the answer of another."""
    presented = simulate(_frames([10] * 8), GATE, delay_ms=200)
    assert [each.answered for each in presented] == [0, 1, 0, 1, 1, 5, 6, 5]  # Up to the longest reuse of three frames.
    late = simulate(_frames([10] * 8), GATE, delay_ms=1000)
    assert [each.answered for each in late] == list(range(8))


def test_a_local_answer_is_present_at_once() -> None:
    """An older answer of the reference model that arrives later does not replace it."""
    presented = simulate(_frames([10] * 5, [0.5, 0.95, 0.5, 0.5, 0.5]), GATE, CASCADE, delay_ms=200)
    assert _answers(presented) == [(0, False), (1, True), (1, True), (1, True), (1, True)]


def test_drives_are_separate() -> None:
    """An answer of another drive is never reused."""
    frames = _frames([7, 7]) + _frames([7, 7], drive="two")
    assert [each.answered for each in simulate(frames, GATE)] == [0, 0, 2, 2]
    assert [each.answered for each in simulate(frames, GATE, delay_ms=150)] == [0, 1, 2, 3]
