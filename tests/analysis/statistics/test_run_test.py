import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics.comparison import PAIRED, WELCH, compare_runs

_A = pd.Series([151.0, 158.0, 149.0, 155.0], index=[1, 2, 3, 4])
_B = pd.Series([171.0, 190.0, 182.0, 176.0], index=[4, 3, 2, 1])


@pytest.mark.parametrize("in_blocks", [False, True])
def test_the_result_is_that_of_scipys_test_on_one_value_per_run(*, in_blocks: bool) -> None:
    """Blocks pair runs by their index, in any order; independent groups may differ in variance and size."""
    a = _A if in_blocks else _A.iloc[:3]
    (found,) = compare_runs([(a, _B)], in_blocks=in_blocks)
    expected = stats.ttest_rel(_B.sort_index(), a) if in_blocks else stats.ttest_ind(_B, a, equal_var=False)
    interval = expected.confidence_interval()
    assert (found.method, found.basis) == ((PAIRED, "4 blocks") if in_blocks else (WELCH, "3 and 4 runs"))
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.difference.value == pytest.approx(_B.mean() - a.mean())
    assert (found.b.mean, found.b.std) == pytest.approx((_B.mean(), _B.std()))
    assert found.verdict == "higher"


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("b", [[], [3.0], [3.0, 4.0], [3.0, 4.0, math.nan]])
def test_fewer_than_three_runs_give_neither_interval_nor_p_value(b: list[float], *, in_blocks: bool) -> None:
    """A p-value computed from two runs would look like a result."""
    groups = pd.Series([1.0, 2.0, 3.0]), pd.Series(b, dtype=np.float64)
    (found,) = compare_runs([groups], in_blocks=in_blocks)
    assert found.method == ""
    assert math.isnan(found.p_value)
    assert math.isnan(found.difference.low)
    assert found.verdict == f"too few runs for a test (n = 3 and {groups[1].count()})"


def test_blocks_with_only_one_group_are_skipped() -> None:
    """A failed run removes its block from the paired test."""
    (found,) = compare_runs([(_A.iloc[:3], _B)], in_blocks=True)
    assert found.basis == "3 blocks"
    assert found.difference.value == pytest.approx((_B - _A.iloc[:3]).mean())


def test_a_family_of_tests_is_adjusted_and_interval_and_p_value_agree() -> None:
    """Twenty comparisons without a real difference must not show one, and an interval must not contradict its p-value."""
    generator = np.random.default_rng(1)
    pairs = [(pd.Series(generator.normal(0, 1, 5)), pd.Series(generator.normal(0.9, 1, 5))) for _ in range(200)]
    single = [compare_runs([pair], in_blocks=False)[0] for pair in pairs]
    together = compare_runs(pairs[:10], in_blocks=False)
    for alone, adjusted in zip(single, together, strict=False):
        assert adjusted.p_value == pytest.approx(min(1.0, 10 * alone.p_value))
        assert adjusted.tests == 10
    for found in [*single, *together]:
        assert found.is_significant == (not found.difference.low <= 0 <= found.difference.high)


def test_a_pair_with_too_few_runs_does_not_count_as_a_test() -> None:
    """A failed cell must not widen the intervals of the other comparisons."""
    few = pd.Series([1.0])
    tested, untested = compare_runs([(_A, _B), (_A, few)], in_blocks=False)
    assert tested.p_value == compare_runs([(_A, _B)], in_blocks=False)[0].p_value
    assert untested.verdict == "too few runs for a test (n = 4 and 1)"


@pytest.mark.parametrize(("b", "verdict"), [(5.0, "no significant difference"), (7.0, "higher")])
def test_runs_without_variation_are_compared_without_error(b: float, verdict: str) -> None:
    """A simulated worker replies in exactly the same time in every run."""
    (found,) = compare_runs([(pd.Series([5.0] * 3), pd.Series([b] * 3))], in_blocks=True)
    assert found.verdict == verdict
    assert found.difference.low == found.difference.high == b - 5
