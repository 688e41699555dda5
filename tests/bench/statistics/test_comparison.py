import math
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.signal import lfilter

from bench.statistics.bootstrap import Floats
from bench.statistics.comparison import Comparison, Sample, adjust, compare

_TRIALS = 120


def _sample(
    name: str, values: Floats | Sequence[float], keys: Sequence[int] | None = None, runs: Sequence[int] | None = None
) -> Sample:
    return Sample(name, pd.Series(values), *(None if each is None else pd.Series(each) for each in (keys, runs)))


def _frames(count: int, seed: int, *, hang: float = 0.0) -> Floats:
    """Totals around 100 ms that stray by 10, with so much autocorrelation."""
    noise = np.random.default_rng(seed).standard_normal(count + 100) * math.sqrt(1 - hang**2)
    return np.asarray(100 + 10 * lfilter([1.0], [1.0, -hang], noise)[100:], np.float64)


def test_independent_frames_are_tested_as_scipy_tests_them() -> None:
    """Where frames do not hang together nothing is corrected: the textbook's p-values come out."""
    a, b = _frames(300, 1), _frames(200, 2) + 2
    found = compare(_sample("a", a), _sample("b", b))
    assert found.welch_p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    u = stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False)
    assert found.mann_whitney_p == pytest.approx(u.pvalue)
    assert found.probability_b_lower == pytest.approx(u.statistic / (300 * 200))
    assert found.difference.value == pytest.approx(np.median(b) - np.median(a))
    assert found.ratio.value == pytest.approx(np.median(b) / np.median(a))
    assert math.isnan(found.paired_t_p)
    assert math.isnan(found.wilcoxon_p)


def test_ties_are_corrected_as_scipy_does() -> None:
    """Whole milliseconds tie all the time."""
    a, b = np.round(_frames(300, 1) / 10), np.round(_frames(300, 2) / 10)
    u = stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False)
    found = compare(_sample("a", a), _sample("b", b))
    assert found.mann_whitney_p == pytest.approx(u.pvalue)
    assert found.probability_b_lower == pytest.approx(u.statistic / 300**2)


def test_the_same_frames_are_compared_pair_by_pair() -> None:
    """What a frame holds makes most of its time: only pairs show a difference that is small beside that."""
    a = _frames(150, 1)
    b = a + 1 + np.random.default_rng(2).standard_normal(150)
    keys = range(150)
    apart, paired = compare(_sample("a", a), _sample("b", b)), compare(_sample("a", a, keys), _sample("b", b, keys))
    assert apart.difference.low < 0 < apart.difference.high
    assert 0 < paired.difference.low < 1 < paired.difference.high < 1.5
    assert (paired.paired, paired.pairs) == (True, 150)
    assert paired.difference.value == pytest.approx(np.median(b - a))
    assert paired.paired_t_p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired.wilcoxon_p == pytest.approx(stats.wilcoxon(b - a, method="asymptotic").pvalue)
    assert paired.welch_p == apart.welch_p


def test_pairs_are_found_whatever_order_and_gaps_the_runs_have() -> None:
    """Answers overtake one another and frames are lost; row 7 of one file is not row 7 of the other."""
    a = _frames(100, 1)
    order = np.random.default_rng(3).permutation(100)[:80]
    found = compare(_sample("a", a, range(100)), _sample("b", a[order] + 5, order.tolist()))
    assert found.pairs == 80
    assert found.difference.value == pytest.approx(5)
    assert found.difference.high - found.difference.low < 1e-9


def test_a_frame_played_twice_is_paired_by_its_turn() -> None:
    """A looped bag has every frame several times; the second pass meets the second pass."""
    values = _frames(100, 1)
    keys = [*range(50), *range(50)]
    found = compare(_sample("a", values, keys), _sample("b", values + 5, keys))
    assert found.pairs == 100
    assert found.difference.low == pytest.approx(5)


def test_few_frames_in_both_are_no_pairs() -> None:
    """Ten common frames must not stand for two runs of hundreds."""
    found = compare(_sample("a", _frames(100, 1), range(100)), _sample("b", _frames(100, 2), range(90, 190)))
    assert not found.paired
    assert found.pairs == 0
    assert math.isfinite(found.welch_p)


def _alarms(found: Comparison) -> list[bool]:
    """Which of the tests see a difference."""
    interval = not found.difference.low <= 0 <= found.difference.high
    p_values = (found.welch_p, found.mann_whitney_p, found.paired_t_p, found.wilcoxon_p)
    return [interval, *(p < 0.05 for p in p_values if math.isfinite(p))]


@pytest.mark.parametrize("pairs", [False, True])
def test_frames_that_follow_one_another_raise_few_false_alarms(*, pairs: bool) -> None:
    """Two runs of the same thing: taken for independent, every third would be called different."""
    keys = range(300) if pairs else None
    samples = [[_frames(300, 2 * seed + side, hang=0.7) for side in (0, 1)] for seed in range(_TRIALS)]
    alarms = [_alarms(compare(_sample("a", a, keys), _sample("b", b, keys))) for a, b in samples]
    assert (np.mean(alarms, axis=0) < 0.11).all()
    assert np.mean([stats.ttest_ind(a, b).pvalue < 0.05 for a, b in samples]) > 0.3


@pytest.mark.parametrize("pairs", [False, True])
def test_runs_that_differ_raise_few_false_alarms(*, pairs: bool) -> None:
    """Each run has a luck of its own, which all its frames share: hundreds of frames are still three runs."""
    runs = np.repeat([0, 1, 2], 60)
    keys = np.tile(np.arange(60), 3).tolist() if pairs else None
    alarms = []
    for seed in range(_TRIALS):
        luck = np.random.default_rng(seed).normal(0, 5, (2, 3))
        a, b = (_frames(180, 2 * seed + side) + luck[side][runs] for side in (0, 1))
        found = compare(_sample("a", a, keys, runs.tolist()), _sample("b", b, keys, runs.tolist()))
        assert found.runs_a == found.runs_b == 3
        alarms.append(_alarms(found))
    assert (np.mean(alarms, axis=0) < 0.09).all()


def test_a_difference_that_is_there_is_found_over_runs() -> None:
    """Caution is worth nothing if it never speaks."""
    runs = np.repeat([0, 1, 2], 60).tolist()
    a, b = _frames(180, 1), _frames(180, 2) + 15
    found = compare(_sample("a", a, None, runs), _sample("b", b, None, runs))
    assert all(_alarms(found))
    assert found.difference.low < 15 < found.difference.high
    assert found.ratio.low < 1.15 < found.ratio.high
    assert found.hedges_g > 1
    assert found.probability_b_lower < 0.2


def test_cold_starts_of_one_frame_each_are_compared_by_run() -> None:
    """A cold start is a run of one frame: what is certain of it comes from how the runs differ."""
    a, b = _frames(10, 1), _frames(10, 2) + 100
    found = compare(_sample("a", a, None, range(10)), _sample("b", b, None, range(10)))
    assert 80 < found.difference.low < 100 < found.difference.high < 120
    assert found.welch_p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


@pytest.mark.parametrize(
    ("a", "b"), [([], []), ([], [1.0, 2.0]), ([1.0], [2.0]), ([math.nan] * 3, [1.0] * 30), ([1.0] * 3, [1.0] * 5)]
)
def test_hardly_any_frames_are_no_error_and_no_claim(a: list[float], b: list[float]) -> None:
    """A cell may have failed; the table goes on."""
    found = compare(_sample("a", a), _sample("b", b))
    assert "Too few" in found.sentence
    assert math.isnan(found.difference.low)
    assert math.isnan(found.welch_p)


def test_values_that_never_vary_are_compared_without_error() -> None:
    """A simulated worker answers in exactly the same time."""
    keys = range(40)
    found = compare(_sample("a", [5.0] * 40, keys), _sample("b", [7.0] * 40, keys))
    assert astuple(found.difference) == (2.0, 2.0, 2.0)
    assert math.isnan(found.wilcoxon_p)
    assert found.probability_b_lower == 0.0


def test_the_sentence_tells_a_difference_and_its_reach() -> None:
    """It is what most readers take home: how much, how surely, from what."""
    frames = np.linspace(90, 110, 120)
    wobble = np.tile([-0.2, 0.2, -0.1, 0.1], 30)
    keys, runs = np.tile(np.arange(120), 3).tolist(), np.repeat([0, 1, 2], 120).tolist()
    a, b = np.tile(frames, 3), np.tile(frames + wobble + 1.8, 3) + np.repeat([-0.3, 0.0, 0.3], 120)
    sentence = compare(_sample("frozen_graph", a, keys, runs), _sample("saved_model", b, keys, runs)).sentence
    assert sentence.startswith("saved_model took 1.8 ms longer than frozen_graph at the median (95 % interval ")
    assert sentence.endswith(" ms, 120 paired frames, 3 runs each); the sample supports a difference.")
    back = compare(_sample("saved_model", b, keys, runs), _sample("frozen_graph", a, keys, runs)).sentence
    assert back.startswith("frozen_graph took 1.8 ms less than saved_model at the median (95 % interval ")


def test_the_sentence_takes_no_difference_shown_for_no_equality() -> None:
    """The commonest misreading of a test."""
    sentence = compare(_sample("a", _frames(100, 1)), _sample("b", _frames(100, 2))).sentence
    assert sentence.startswith("Between a and b no difference could be shown at the median: the interval −")
    assert "includes 0; this does not show that they are equal." in sentence
    assert sentence.endswith("This holds for these two runs: one run each cannot show how another would differ.")


def test_the_sentence_calls_a_negligible_difference_so() -> None:
    """With frames enough everything is significant; nobody chooses a part for a thousandth."""
    a, keys = _frames(400, 1), range(400)
    b = a + 0.1 + 0.1 * np.random.default_rng(2).standard_normal(400)
    sentence = compare(_sample("a", a, keys), _sample("b", b, keys)).sentence
    assert "the sample supports a difference, but a negligible one: 0.1" in sentence
    same = compare(_sample("a", a, keys), _sample("b", b - 0.1, keys)).sentence
    assert "if there is one, it is below 1 % of the median" in same


def test_the_sentence_says_when_frames_are_too_few_or_too_alike() -> None:
    """Four hundred frames of one slow drift are a handful."""
    assert compare(_sample("a", [1, 2, 3]), _sample("b", [1, 2, 3, 4, 5])).sentence == (
        "Too few frames (3 and 5) to say how b compares with a."
    )
    drift = np.cumsum(np.random.default_rng(1).standard_normal(400))
    sentence = compare(_sample("a", drift), _sample("b", drift[::-1])).sentence
    assert sentence.startswith("Too few independent frames to say how b compares with a: 400 and 400 that follow")


def test_the_sentence_knows_uneven_runs() -> None:
    """Three runs against one still cannot show how another of the one would come out."""
    runs = np.repeat([0, 1, 2], 40).tolist()
    sentence = compare(_sample("a", _frames(120, 1), None, runs), _sample("b", _frames(120, 2) + 30)).sentence
    assert "120 and 120 frames, 3 and 1 runs)" in sentence
    assert sentence.endswith("3 and 1 cannot show how another would differ.")


def test_many_p_values_are_adjusted_by_holm() -> None:
    """Of twenty tables of nothing one is significant; the worked example is Holm's own scheme, step by step."""
    assert adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    adjusted = adjust([0.02, math.nan, 0.9, 0.8])
    assert math.isnan(adjusted[1])
    assert [adjusted[0], *adjusted[2:]] == pytest.approx([0.06, 1.0, 1.0])
    assert adjust([]) == []
