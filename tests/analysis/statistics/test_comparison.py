import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics.bootstrap import Floats
from analysis.statistics.comparison import LatencyComparison, LatencySample, compare_latencies

_RUNS = np.repeat([1, 2, 3, 4], 60).tolist()


def _sample(name: str, values: Floats | Sequence[float], runs: Sequence[int] | None = None) -> LatencySample:
    return LatencySample(name, pd.Series(values, dtype=np.float64), None if runs is None else pd.Series(runs))


def _frames(count: int, seed: int) -> Floats:
    """Normally distributed totals with mean 100 ms and standard deviation 10 ms."""
    return np.random.default_rng(seed).normal(100, 10, count)


def _compared(a: LatencySample, b: LatencySample, *, in_blocks: bool = True) -> LatencyComparison:
    (found,) = compare_latencies([(a, b)], in_blocks=in_blocks)
    return found


def test_the_test_compares_run_medians_instead_of_frames() -> None:
    """All frames of a run share its conditions: hundreds of frames are still only four independent runs."""
    a, b = _frames(240, 1), _frames(240, 2) + 15
    found = _compared(_sample("a", a, _RUNS), _sample("b", b, _RUNS))
    medians = [np.median(frames.reshape(4, 60), axis=1) for frames in (a, b)]
    assert found.p_value == pytest.approx(stats.ttest_rel(*medians).pvalue)
    assert found.difference.value == pytest.approx(np.mean(medians[1] - medians[0]))
    assert found.difference.low < 15 < found.difference.high
    assert found.ratio.value == pytest.approx(stats.gmean(medians[1]) / stats.gmean(medians[0]))
    assert found.ratio.low < 1.15 < found.ratio.high
    assert (found.runs_a, found.runs_b, found.count_a) == (4, 4, 240)
    assert found.hedges_g > 1
    assert found.probability_b_lower < 0.2


@pytest.mark.parametrize("runs", [None, np.repeat([1, 2], 120).tolist()])
def test_too_few_runs_give_no_p_value_even_if_their_frames_differ_clearly(runs: list[int] | None) -> None:
    """The report once showed "too few runs" together with p = 0.001 for the same comparison."""
    found = _compared(_sample("a", _frames(240, 1), runs), _sample("b", _frames(240, 2) + 50, runs))
    n = 1 if runs is None else 2
    assert math.isnan(found.p_value)
    assert math.isnan(found.difference.low)
    assert math.isnan(found.ratio.low)
    assert found.difference.value == pytest.approx(50, abs=3)
    assert found.verdict == f"too few runs for a test (n = {n} and {n})"
    assert found.verdict in found.sentence
    assert "p =" not in found.sentence
    assert "p <" not in found.sentence


def test_runs_of_a_single_frame_are_compared_by_run() -> None:
    """A cold-start run consists of one frame."""
    a, b = _frames(10, 1), _frames(10, 2) + 100
    found = _compared(_sample("a", a, range(10)), _sample("b", b, range(10)), in_blocks=False)
    assert 80 < found.difference.low < 100 < found.difference.high < 120
    assert found.p_value == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


@pytest.mark.parametrize(("a", "b"), [([], []), ([], [1.0, 2.0]), ([1.0], [2.0]), ([math.nan] * 3, [1.0] * 30)])
def test_samples_with_few_or_no_frames_are_compared_without_a_test(a: list[float], b: list[float]) -> None:
    """A cell of the study may have failed; the table must still show the others."""
    found = _compared(_sample("a", a), _sample("b", b))
    assert found.verdict.startswith("too few runs for a test")
    assert math.isnan(found.p_value)
    if len(b) != 1:
        assert "cannot be compared" in found.sentence


def test_ties_count_half_and_constant_samples_raise_no_error() -> None:
    """A simulated worker replies in exactly the same time to every frame."""
    assert _compared(_sample("a", [5.0] * 40), _sample("b", [7.0] * 40)).probability_b_lower == 0.0
    assert _compared(_sample("a", [5.0, 7.0]), _sample("b", [5.0, 7.0])).probability_b_lower == 0.5


def _with_medians(name: str, medians: Sequence[float]) -> LatencySample:
    return _sample(name, [*medians], range(len(medians)))


def test_the_sentence_contains_the_difference_its_interval_and_its_test() -> None:
    """Most readers read only this sentence."""
    a, b = [100.0, 101.0, 102.0, 103.0], [101.9, 102.7, 103.8, 104.8]
    found = _compared(_with_medians("frozen_graph", a), _with_medians("saved_model", b))
    assert found.sentence == (
        "At the median, saved_model took 1.80 ms longer than frozen_graph (95 % interval 1.67 to 1.93 ms; paired t-test "
        "over 4 blocks, p < 0.001)."
    )
    assert found.verdict == "higher"
    back = _compared(_with_medians("saved_model", b), _with_medians("frozen_graph", a))
    assert back.sentence.startswith("At the median, frozen_graph took 1.80 ms less than saved_model (")


def test_the_sentence_does_not_call_groups_equal_that_do_not_differ_significantly() -> None:
    """A test without a significant result is often misread as proof of equality."""
    found = _compared(_with_medians("a", [90.0, 100.0, 110.0]), _with_medians("b", [104.0, 95.0, 108.0]))
    assert found.sentence.startswith("The medians of a and b do not differ significantly (95 % interval −")
    assert found.sentence.endswith("; this does not show that they are equal.")
    assert found.verdict == "no significant difference"


def test_the_sentence_calls_a_tiny_difference_negligible() -> None:
    """With enough runs every difference becomes significant, even one of a thousandth."""
    a = [100.0, 101.0, 99.0]
    found = _compared(_with_medians("a", a), _with_medians("b", [100.1, 101.11, 99.09]))
    assert found.sentence.endswith(", but this is negligible: 0.10 % of the median.")
    same = _compared(_with_medians("a", a), _with_medians("b", [100.01, 100.99, 99.0]))
    assert same.sentence.endswith("any difference is below 1 % of the median.")


def test_the_sentence_names_the_number_of_comparisons() -> None:
    """An adjusted p-value cannot be recognised otherwise."""
    pair = _with_medians("a", [100.0, 101.0, 102.0]), _with_medians("b", [110.0, 112.0, 111.0])
    first, second = compare_latencies([pair, pair], in_blocks=True)
    assert "adjusted for 2 comparisons" in first.sentence
    assert first.p_value == second.p_value == pytest.approx(2 * _compared(*pair).p_value)
