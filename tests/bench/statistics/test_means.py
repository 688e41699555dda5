"""The t-test of a few figures a side, held to SciPy's."""

import numpy as np
import pytest
from scipy import stats

from bench.statistics.means import compare_means


def test_the_test_is_welch_s_as_scipy_has_it() -> None:
    """Three runs a side, of unequal spread: where the pooled test would be another."""
    a, b = np.array([151.0, 158.0, 149.0]), np.array([171.0, 190.0, 182.0, 176.0])
    found = compare_means(a, b)
    expected = stats.ttest_ind(b, a, equal_var=False)
    assert found.welch_p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.difference.value == pytest.approx(b.mean() - a.mean())
    assert (found.a.count, found.b.count) == (3, 4)
    assert (found.a.mean, found.b.std) == pytest.approx((a.mean(), b.std(ddof=1)))


@pytest.mark.parametrize("b", [[], [3.0], [3.0, np.nan]])
def test_one_run_tells_no_spread(b: list[float]) -> None:
    """A p-value of one figure would be made up."""
    found = compare_means(np.array([1.0, 2.0, 3.0]), np.array(b))
    assert np.isnan(found.welch_p)
    assert np.isnan(found.difference.low)
    assert np.isnan(found.b.std)


def test_figures_that_do_not_differ_at_all_give_no_p_value() -> None:
    """The error is 0, and any difference would be a sure one."""
    assert np.isnan(compare_means(np.full(3, 5.0), np.full(3, 5.0)).welch_p)
