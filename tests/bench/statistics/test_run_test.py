"""The test behind every verdict, held to SciPy's."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bench.statistics.run_test import PAIRED, WELCH, compare_runs

_A = pd.Series([151.0, 158.0, 149.0, 155.0], index=[1, 2, 3, 4])
_B = pd.Series([171.0, 190.0, 182.0, 176.0], index=[4, 3, 2, 1])


def test_independent_runs_are_tested_by_welch_as_scipy_has_it() -> None:
    """Sides of unequal spread and number, for which a pooled test would be another."""
    a = _A.iloc[:3]
    (found,) = compare_runs([(a, _B)], in_blocks=False)
    expected = stats.ttest_ind(_B, a, equal_var=False)
    interval = expected.confidence_interval()
    assert (found.method, found.basis) == (WELCH, "3 and 4 runs")
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.difference.value == pytest.approx(_B.mean() - a.mean())
    assert (found.b.mean, found.b.std) == pytest.approx((_B.mean(), _B.std()))


def test_runs_of_the_same_blocks_are_tested_in_pairs_as_scipy_has_it() -> None:
    """What drifts from block to block meets both sides alike, and must not hide the difference; order does not matter."""
    (found,) = compare_runs([(_A, _B)], in_blocks=True)
    expected = stats.ttest_rel(_B.sort_index(), _A)
    assert (found.method, found.basis) == (PAIRED, "4 blocks")
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.verdict == "higher"


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("b", [[], [3.0], [3.0, 4.0], [3.0, 4.0, math.nan]])
def test_fewer_than_three_runs_give_neither_interval_nor_p_value(b: list[float], *, in_blocks: bool) -> None:
    """A p-value of two runs would look like an answer."""
    sides = pd.Series([1.0, 2.0, 3.0]), pd.Series(b, dtype=np.float64)
    (found,) = compare_runs([sides], in_blocks=in_blocks)
    assert found.method == ""
    assert math.isnan(found.p_value)
    assert math.isnan(found.difference.low)
    assert found.verdict == f"too few runs to tell (n = 3 and {sides[1].count()})"


def test_blocks_that_only_one_side_has_are_left_out() -> None:
    """A run that failed takes its block with it."""
    (found,) = compare_runs([(_A.iloc[:3], _B)], in_blocks=True)
    assert found.basis == "3 blocks"
    assert found.difference.value == pytest.approx((_B - _A.iloc[:3]).mean())


def test_tests_made_together_are_adjusted_and_interval_and_p_value_agree() -> None:
    """A table of twenty comparisons of nothing must not find one; and an interval must not contradict its p-value."""
    generator = np.random.default_rng(1)
    pairs = [(pd.Series(generator.normal(0, 1, 5)), pd.Series(generator.normal(0.9, 1, 5))) for _ in range(200)]
    single = [compare_runs([pair], in_blocks=False)[0] for pair in pairs]
    together = compare_runs(pairs[:10], in_blocks=False)
    for alone, adjusted in zip(single, together, strict=False):
        assert adjusted.p_value == pytest.approx(min(1.0, 10 * alone.p_value))
        assert adjusted.tests == 10
    for found in [*single, *together]:
        assert found.is_shown == (not found.difference.low <= 0 <= found.difference.high)


def test_a_pair_that_cannot_be_tested_does_not_count_as_a_test() -> None:
    """A cell that failed must not make the others harder to tell apart."""
    few = pd.Series([1.0])
    tested, untested = compare_runs([(_A, _B), (_A, few)], in_blocks=False)
    assert tested.p_value == compare_runs([(_A, _B)], in_blocks=False)[0].p_value
    assert untested.verdict == "too few runs to tell (n = 4 and 1)"


@pytest.mark.parametrize(("b", "verdict"), [(5.0, "no difference shown"), (7.0, "higher")])
def test_runs_that_never_vary_are_compared_without_error(b: float, verdict: str) -> None:
    """A simulated worker answers in exactly the same time."""
    (found,) = compare_runs([(pd.Series([5.0] * 3), pd.Series([b] * 3))], in_blocks=True)
    assert found.verdict == verdict
    assert found.difference.low == found.difference.high == b - 5


def test_runs_of_the_same_thing_raise_few_false_alarms() -> None:
    """One in twenty, by its definition."""
    generator = np.random.default_rng(3)
    sides = [[pd.Series(generator.normal(100, 5, 3)) for _ in range(2)] for _ in range(400)]
    for in_blocks in (False, True):
        alarms = [compare_runs([(a, b)], in_blocks=in_blocks)[0].is_shown for a, b in sides]
        assert np.mean(alarms) < 0.08
