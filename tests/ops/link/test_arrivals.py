"""Arrivals of results: imposed ages, links and outages."""

from itertools import pairwise

import pytest

from ops.link.arrivals import ResultArrivals, RoundTrip, after, over_link
from shared.network.link_spec import PROFILES, LinkSpec

NS_PER_MS = 1_000_000
PERIOD_NS = 100 * NS_PER_MS
FRAMES = 60


def simulate(spec: LinkSpec, trip: RoundTrip, outage_ns: tuple[int, int] | None = None) -> ResultArrivals:
    """A drive of frames of 70 KB and masks of 10 KB."""
    return over_link(spec, trip, PERIOD_NS, [(70_000, 10_000)] * FRAMES, outage_ns)


@pytest.mark.parametrize(("age_ms", "frames_back"), [(0, 0), (33, 1), (100, 1), (200, 2), (250, 3)])
def test_an_imposed_age_counts_whole_frames(age_ms: float, frames_back: int) -> None:
    """A result that takes 250 ms is acted on at the third tick after its frame."""
    arrivals = after(age_ms, FRAMES, PERIOD_NS)
    assert arrivals.newest(20 * PERIOD_NS) == 20 - frames_back
    assert arrivals.newest(-1) is None


def test_every_third_frame_answers_for_three_ticks() -> None:
    """Frames that are not sent have no result of their own."""
    arrivals = after(100, FRAMES, PERIOD_NS).only_every(3)
    assert [arrivals.newest(tick * PERIOD_NS) for tick in range(1, 8)] == [0, 0, 0, 3, 3, 3, 6]


def test_a_round_trip_adds_link_and_worker() -> None:
    """Without jitter, the time of a result is the sum of its parts."""
    spec = LinkSpec(delay_ms=20, bandwidth_up_mbps=20, bandwidth_down_mbps=40)
    arrivals = simulate(spec, RoundTrip(inference_ms=30, other_ms=8))
    expected_ms = 8 + 28 + 20 + 30 + 2 + 20
    for frame, at_ns in enumerate(arrivals.at_ns):
        assert at_ns is not None
        assert at_ns / NS_PER_MS - 100 * frame == pytest.approx(expected_ms, abs=0.1)


def test_a_worker_that_is_slower_than_the_camera_limits_the_frames_sent() -> None:
    """A full window keeps results from growing older and older."""
    arrivals = simulate(LinkSpec(), RoundTrip(inference_ms=250, window=2))
    answered = [(frame, at_ns) for frame, at_ns in enumerate(arrivals.at_ns) if at_ns is not None]
    assert len(answered) < FRAMES / 2
    assert all(at_ns - frame * PERIOD_NS <= 600 * NS_PER_MS for frame, at_ns in answered)
    assert all(earlier < later for (_, earlier), (_, later) in pairwise(answered))


def test_the_seed_of_a_link_decides_all_arrivals() -> None:
    """The same link gives the same ages again; another seed gives others."""
    trip = RoundTrip(inference_ms=60)
    assert simulate(PROFILES["4g"], trip) == simulate(PROFILES["4g"], trip)
    other = PROFILES["4g"].model_copy(update={"seed": 1})
    assert simulate(other, trip) != simulate(PROFILES["4g"], trip)


def test_no_result_crosses_an_outage() -> None:
    """What is under way is lost; the first frame after the outage is answered at once, without old ones before it."""
    outage_ns = (2_000 * NS_PER_MS, 4_000 * NS_PER_MS)
    arrivals = simulate(PROFILES["5g"], RoundTrip(inference_ms=60), outage_ns)
    assert all(at_ns is None or not outage_ns[0] <= at_ns < outage_ns[1] for at_ns in arrivals.at_ns)
    assert arrivals.at_ns[20:40] == (None,) * 20
    after_ns = arrivals.at_ns[40]
    assert after_ns is not None
    assert after_ns - 40 * PERIOD_NS < 200 * NS_PER_MS
