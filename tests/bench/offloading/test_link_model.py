import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.offloading.link_model import Link, LinkModel

_DELAYS = st.floats(0, 500)
_BANDWIDTHS = st.floats(0.1, 10_000)


@st.composite
def _models(draw: st.DrawFn) -> LinkModel:
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    count = draw(st.integers(1, 60))
    return LinkModel(generator.lognormal(4, 0.5, count), 8 * generator.uniform(1e4, 2e6, count))


@given(_models(), _DELAYS, st.floats(1, 2000))
def test_at_the_bandwidth_found_both_take_equally_long(model: LinkModel, delay_ms: float, p50_ms: float) -> None:
    """Otherwise it is no turning point."""
    bandwidth = model.bandwidth_for(p50_ms, delay_ms)
    if bandwidth is None:
        assert model.p50_ms(None, delay_ms) >= p50_ms * (1 - 1e-12)
    else:
        assert model.p50_ms(bandwidth, delay_ms) == pytest.approx(p50_ms, rel=1e-6)


@given(_models(), st.none() | _BANDWIDTHS, st.floats(1, 2000))
def test_at_the_delay_found_both_take_equally_long(
    model: LinkModel, bandwidth_mbps: float | None, p50_ms: float
) -> None:
    """The same, for the other of the two."""
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
    """More bandwidth, or less delay, cannot make it worse; nor can any limit beat none."""
    (narrow, wide), (short, long) = sorted(bandwidths), sorted(delays)
    assert model.p50_ms(wide, short) <= model.p50_ms(narrow, short)
    assert model.p50_ms(narrow, short) <= model.p50_ms(narrow, long)
    assert model.p50_ms(None, short) <= model.p50_ms(wide, short)


def test_a_frame_takes_its_bits_over_the_bandwidth() -> None:
    """A megabyte at 8 Mbit/s takes a second: units are where such models go wrong."""
    model = LinkModel(np.array([100.0]), np.array([8e6]))
    assert model.p50_ms(8, 25) == pytest.approx(100 + 1000 + 50)
    assert model.bandwidth_for(1150, 25) == pytest.approx(8)
    assert model.delay_for(1150, 8) == pytest.approx(25)


def test_the_curve_holds_a_median_for_every_link() -> None:
    """A chart is drawn from it."""
    model = LinkModel(np.array([100.0, 120.0]), np.array([8e5, 9e5]))
    curve = model.curve()
    assert len(curve.p50_ms) == len(curve.delays_ms)
    assert {len(row) for row in curve.p50_ms} == {len(curve.bandwidths_mbps)}
    assert curve.p50_ms[2][3] == model.p50_ms(curve.bandwidths_mbps[3], curve.delays_ms[2])


def test_a_link_is_read_off_the_frames_that_crossed_it() -> None:
    """20 ms each way and 40 Mbit/s, through a broker that takes 2 ms, from frames of 50 to 150 KB."""
    bits = 8 * np.linspace(50e3, 150e3, 101)
    link = Link.measured(2 + 2 * 20 + bits / 40e3, bits, broker_ms=2, probe_ms=20)
    assert link.delay_ms == pytest.approx(20)
    assert link.bandwidth_mbps == pytest.approx(40)


def test_a_delay_that_nothing_told_is_put_down_to_bandwidth() -> None:
    """Without a clock exchange the two cannot be told apart; together they are still the crossing."""
    bits = np.full(50, 8e5)
    link = Link.measured(np.full(50, 62.0), bits, broker_ms=2, probe_ms=math.nan)
    assert link.delay_ms == 0
    assert LinkModel(np.zeros(50), bits).p50_ms(link.bandwidth_mbps, link.delay_ms) == pytest.approx(60)


def test_no_link_shows_no_limit() -> None:
    """A remote worker on the same machine crosses no faster than the broker alone."""
    link = Link.measured(np.full(50, 1.9), np.full(50, 8e5), broker_ms=2, probe_ms=0.1)
    assert (link.delay_ms, link.bandwidth_mbps) == (0, None)
