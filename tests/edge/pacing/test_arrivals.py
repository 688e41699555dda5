from itertools import islice, pairwise

import numpy as np
import pytest
from scipy.stats import kstest

from edge.pacing.arrivals import poisson_ns, uniform_ns


def test_uniform_arrivals_keep_their_rate_for_ever() -> None:
    """A third of a second is no whole number of nanoseconds: adding rounded gaps up would drift."""
    due = list(islice(uniform_ns(3.0), 3_000_001))
    assert due[:4] == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert due[-1] == 10**15


def test_poisson_arrivals_are_those_of_a_poisson_process() -> None:
    """Exponential gaps that know nothing of each other; anything more regular would spare the worker its queue."""
    rate_hz = 20.0
    due_s = np.array(list(islice(poisson_ns(rate_hz, 7), 20_001))) / 1e9
    gaps_s = np.diff(due_s)
    assert due_s[0] == 0
    assert gaps_s.mean() == pytest.approx(1 / rate_hz, rel=0.03)
    assert kstest(gaps_s, "expon", args=(0, 1 / rate_hz)).pvalue > 0.01
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 0.03


def test_one_seed_is_one_schedule() -> None:
    """Two engines are compared under the very same load, and a run can be repeated from its manifest."""
    first, again, other = (list(islice(poisson_ns(5.0, seed), 100)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(earlier <= later for earlier, later in pairwise(first))


def test_a_seeds_schedule_does_not_change_with_the_code() -> None:
    """The seed in an old manifest must still tell when its frames were due."""
    assert list(islice(poisson_ns(10.0, 2026), 4)) == [0, 12_683_374, 82_502_513, 154_210_178]
