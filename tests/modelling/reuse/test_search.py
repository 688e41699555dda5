"""The choice of thresholds."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from modelling.reuse.replay import Replay, ReplayedFrame, simulate
from modelling.reuse.scoring import ClassificationScorer
from modelling.reuse.search import Outcomes, Tuner, best, pareto_front
from shared.reuse.gate import SIDE, GateSettings
from shared.reuse.tuning import CascadeThresholds
from shared.task import Confidence

FRAMES = 40
CASCADE = CascadeThresholds(0.2, 0.8)


def _replay(drives: int, seed: int = 1, *, bad: Sequence[int] = ()) -> Replay:
    """Random drives whose local model knows the truth less well than the reference; in the `bad` ones, it always errs."""
    generator = np.random.default_rng(seed)
    replayed = Replay(ClassificationScorer(), "labels", "")
    for drive in range(drives):
        replayed.drives.append(f"drive-{drive}")
        level, truth = 100, 0
        for index in range(FRAMES):
            if generator.random() < 0.2:
                level, truth = int(generator.integers(50, 200)), int(generator.integers(2))
            score = np.clip(truth + generator.normal(0, 0.3), 0.01, 0.99)
            score = 1 - score if drive in bad else score
            small = np.full((SIDE, SIDE), level, np.uint8) + generator.integers(0, 3, (SIDE, SIDE), np.uint8)
            confidence = Confidence(np.array([score], np.float32), two_sided=True)
            replayed.frames.append(
                ReplayedFrame(f"drive-{drive}", (80, 120, "rgb8"), small, index * 100_000_000, confidence)
            )
            replayed.truths.append(truth)
            replayed.reference_answers.append(truth if generator.random() < 0.97 else 1 - truth)
            replayed.local_answers.append(int(score > 0.5))
    return replayed


def _gate(threshold: float) -> GateSettings:
    return GateSettings("mse", threshold, 20, 10_000)


@pytest.fixture(scope="module")
def tuner() -> Tuner:
    """A tuner of six drives."""
    return Tuner(_replay(6))


@pytest.fixture(scope="module")
def candidates(tuner: Tuner) -> list[Outcomes]:
    """Its outcomes with three gates and all cascades."""
    return list(tuner.candidates([_gate(each) for each in (0.0, 1.5, 900.0)], tuner.cascades()))


@pytest.mark.parametrize("delay_ms", [0.0, 250.0])
def test_outcomes_are_those_of_the_simulated_vehicle(delay_ms: float) -> None:
    """Cascades that are sure of the same frames are simulated once, which must not change the result."""
    replayed = _replay(3)
    tuner = Tuner(replayed, delay_ms)
    gates = [None, _gate(2.0), _gate(500.0)]
    cascades = [CascadeThresholds(0.2, 0.81), None, CASCADE, CascadeThresholds(0.01, 0.6)]
    for (gate, cascade), got in zip(product(gates, cascades), tuner.candidates(gates, cascades), strict=True):
        presented = simulate(replayed.frames, gate, cascade, delay_ms)
        right = [
            (replayed.local_answers if each.is_local else replayed.reference_answers)[each.answered] == truth
            for each, truth in zip(presented, replayed.truths, strict=True)
        ]
        own = [index for index, each in enumerate(presented) if each.answered == index]
        assert (got.gate, got.cascade) == (gate, cascade)
        assert got.accuracy == pytest.approx(100 * np.mean(right))
        assert got.reused == pytest.approx(1 - len(own) / len(presented))
        assert got.sent == pytest.approx(sum(not presented[index].is_local for index in own) / len(presented))
        assert got.sent + got.reused + got.answered_locally == pytest.approx(1)
    everything = tuner.outcomes(None, None)
    assert (everything.loss, everything.sent) == (0, 1), "every frame is sent"


@pytest.mark.parametrize("allowed", [0.5, 3.0])
def test_the_chosen_thresholds_keep_to_the_allowed_loss(
    tuner: Tuner, candidates: list[Outcomes], allowed: float
) -> None:
    """Their bound does too, and no candidate that keeps to it sends fewer frames."""
    found = best(tuner, candidates, allowed)
    assert found is not None
    chosen, bound = found
    assert chosen.loss <= bound <= allowed
    assert chosen.sent < 1
    cheaper = [each for each in candidates if each.sent < chosen.sent and each.loss <= allowed]
    assert all(tuner.loss_bound(each) > allowed for each in cheaper)


def test_more_loss_saves_more_frames(tuner: Tuner, candidates: list[Outcomes]) -> None:
    """The share of frames sent falls with the allowed loss."""
    found = [best(tuner, candidates, allowed) for allowed in (0.2, 2.0, 20.0)]
    sent = [each[0].sent for each in found if each is not None]
    assert sent == sorted(sent, reverse=True)
    assert len(set(sent)) > 1


def test_a_loss_on_a_few_drives_raises_the_bound() -> None:
    """Drives like these may come more often elsewhere; parts of one drive take the place of drives."""
    even, uneven = Tuner(_replay(8)), Tuner(_replay(8, bad=(7,)))
    found = [(tuner, tuner.outcomes(None, CASCADE)) for tuner in (even, uneven, Tuner(_replay(1)))]
    gaps = [tuner.loss_bound(outcomes) - outcomes.loss for tuner, outcomes in found]
    assert gaps[1] > 2 * gaps[0] > 0
    assert gaps[2] > 0


def test_a_gain_on_one_drive_does_not_make_up_for_a_loss_on_another() -> None:
    """Here the local model errs on one drive, and the reference model on all others, so there is no loss in total."""
    replayed = _replay(6, bad=(0,))
    replayed.reference_answers[FRAMES:] = [1 - truth for truth in replayed.truths[FRAMES:]]
    tuner = Tuner(replayed)
    outcomes = tuner.outcomes(None, CascadeThresholds(0.4, 0.6))
    assert outcomes.loss < 0
    assert tuner.loss_bound(outcomes) > 10
    assert best(tuner, [outcomes], 5.0) is None


def test_the_front_has_no_candidate_that_is_worse_in_both(candidates: list[Outcomes]) -> None:
    """It starts with the fewest frames sent and ends with the smallest loss."""
    front = pareto_front(candidates)
    assert [each.sent for each in front] == sorted(each.sent for each in front)
    assert [each.loss for each in front] == sorted((each.loss for each in front), reverse=True)
    assert all(any(each.sent >= one.sent and each.loss >= one.loss for one in front) for each in candidates)
