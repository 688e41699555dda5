import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.offloading import EstimatedLink, LinkModel

_DELAYS = st.floats(0, 500)
_BANDWIDTHS = st.floats(0.1, 10_000)


@st.composite
def _models(draw: st.DrawFn) -> LinkModel:
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    count = draw(st.integers(1, 60))
    return LinkModel(generator.lognormal(4, 0.5, count), 8 * generator.uniform(1e4, 2e6, count))


@given(_models(), _DELAYS, st.floats(1, 2000))
def test_the_computed_bandwidth_gives_the_wanted_median(model: LinkModel, delay_ms: float, p50_ms: float) -> None:
    """None means that even unlimited bandwidth is too slow."""
    bandwidth = model.bandwidth_for(p50_ms, delay_ms)
    if bandwidth is None:
        assert model.p50_ms(None, delay_ms) >= p50_ms * (1 - 1e-12)
    else:
        assert model.p50_ms(bandwidth, delay_ms) == pytest.approx(p50_ms, rel=1e-6)


@given(_models(), st.none() | _BANDWIDTHS, st.floats(1, 2000))
def test_the_computed_delay_gives_the_wanted_median(
    model: LinkModel, bandwidth_mbps: float | None, p50_ms: float
) -> None:
    """None means that even a delay of 0 is too slow."""
    delay = model.delay_for(p50_ms, bandwidth_mbps)
    if delay is None:
        assert model.p50_ms(bandwidth_mbps, 0) > p50_ms
    else:
        assert delay >= 0
        assert model.p50_ms(bandwidth_mbps, delay) == pytest.approx(p50_ms)


@given(_models(), st.tuples(_BANDWIDTHS, _BANDWIDTHS), st.tuples(_DELAYS, _DELAYS))
def test_a_better_link_is_never_slower(
    model: LinkModel, bandwidths: tuple[float, float], delays: tuple[float, float]
) -> None:
    """More bandwidth or less delay never increases the median, and unlimited bandwidth gives the lowest."""
    (narrow, wide), (short, long) = sorted(bandwidths), sorted(delays)
    assert model.p50_ms(wide, short) <= model.p50_ms(narrow, short)
    assert model.p50_ms(narrow, short) <= model.p50_ms(narrow, long)
    assert model.p50_ms(None, short) <= model.p50_ms(wide, short)


def test_the_transfer_time_is_bits_divided_by_bandwidth() -> None:
    """A megabyte at 8 Mbit/s takes a second."""
    model = LinkModel(np.array([100.0]), np.array([8e6]))
    assert model.p50_ms(8, 25) == pytest.approx(100 + 1000 + 50)
    assert model.bandwidth_for(1150, 25) == pytest.approx(8)
    assert model.delay_for(1150, 8) == pytest.approx(25)


def test_the_curve_contains_a_median_for_every_link() -> None:
    """The report draws a chart of it."""
    model = LinkModel(np.array([100.0, 120.0]), np.array([8e5, 9e5]))
    curve = model.curve()
    assert len(curve.p50_ms) == len(curve.delays_ms)
    assert {len(row) for row in curve.p50_ms} == {len(curve.bandwidths_mbps)}
    assert curve.p50_ms[2][3] == model.p50_ms(curve.bandwidths_mbps[3], curve.delays_ms[2])


def test_delay_and_bandwidth_are_estimated_from_frames() -> None:
    """Frames of 50 to 150 KB over 20 ms each way and 40 Mbit/s, with a broker that takes 2 ms."""
    bits = 8 * np.linspace(50e3, 150e3, 101)
    link = EstimatedLink.measured(2 + 2 * 20 + bits / 40e3, bits, broker_ms=2, probe_ms=20)
    assert link.delay_ms == pytest.approx(20)
    assert link.bandwidth_mbps == pytest.approx(40)


def test_an_unknown_delay_is_attributed_to_bandwidth() -> None:
    """Without clock exchanges, delay and transfer cannot be separated; their sum is still right."""
    bits = np.full(50, 8e5)
    link = EstimatedLink.measured(np.full(50, 62.0), bits, broker_ms=2, probe_ms=math.nan)
    assert link.delay_ms == 0
    assert LinkModel(np.zeros(50), bits).p50_ms(link.bandwidth_mbps, link.delay_ms) == pytest.approx(60)


def test_a_worker_without_a_link_has_no_bandwidth_limit() -> None:
    """The frames of a worker on the same machine cross as fast as the broker alone."""
    link = EstimatedLink.measured(np.full(50, 1.9), np.full(50, 8e5), broker_ms=2, probe_ms=0.1)
    assert (link.delay_ms, link.bandwidth_mbps) == (0, None)
