from collections import Counter
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.link.timing import BUFFER_S, SEGMENT_BYTES, LinkDirection, StreamTiming
from shared.network.link_spec import PROFILES, LinkSpec

MEGABIT_BYTES = 125_000


def stream(spec: LinkSpec, *, up: bool = True, number: int = 1, counted: Counter[str] | None = None) -> StreamTiming:
    """The timing of the only connection of a link."""
    return StreamTiming(LinkDirection(spec, up=up), number, Counter() if counted is None else counted)


def test_a_link_without_faults_takes_no_time() -> None:
    """The profile `none` is the baseline of studies."""
    assert stream(PROFILES["none"]).release_s(100_000, 0, 5.0) == 5.0


def test_the_5g_profile_is_faster_than_the_4g_profile() -> None:
    """Studies use profiles by name."""
    slow, fast = PROFILES["4g"], PROFILES["5g"]
    assert slow.round_trip_s > fast.round_trip_s > 0
    for up in (True, False):
        assert (slow.bytes_per_s(up=up) or 0) < (fast.bytes_per_s(up=up) or 0)


def test_each_direction_has_its_own_delay_and_bandwidth() -> None:
    """Mobile networks are asymmetric, which matters for the error bound of clocks."""
    spec = LinkSpec(delay_ms=10, delay_up_ms=30, bandwidth_mbps=8, bandwidth_down_mbps=80)
    assert stream(spec, up=True).release_s(1000, 0, 1.0) == pytest.approx(1.0 + 0.030 + 0.001)
    assert stream(spec, up=False).release_s(1000, 0, 1.0) == pytest.approx(1.0 + 0.010 + 0.0001)


def test_connections_share_the_bandwidth() -> None:
    """Four vehicles behind one radio share its bandwidth."""
    direction = LinkDirection(LinkSpec(bandwidth_mbps=1), up=True)
    streams = [StreamTiming(direction, number, Counter()) for number in range(4)]
    last_s = max(one.release_s(MEGABIT_BYTES // 4, 0, 0.0) for one in streams)
    assert last_s == pytest.approx(1.0)


def test_a_full_buffer_makes_the_sender_wait() -> None:
    """Otherwise a narrow link would buffer whole drives, and every frame would seem to be sent at once."""
    direction = LinkDirection(LinkSpec(bandwidth_mbps=1), up=True)
    one = StreamTiming(direction, 1, Counter())
    one.release_s(MEGABIT_BYTES, 0, 0.0)
    assert direction.wait_s(0.0) == pytest.approx(1.0 - BUFFER_S)
    assert direction.wait_s(1.0) == 0.0


@given(
    gaps_s=st.lists(st.floats(0, 0.1), min_size=2, max_size=50),
    size=st.integers(1, 10 * SEGMENT_BYTES),
    seed=st.integers(0, 1000),
)
def test_bytes_leave_in_order_and_not_before_the_delay(gaps_s: list[float], size: int, seed: int) -> None:
    """TCP delivers in order: a late piece delays all later ones."""
    spec = LinkSpec(delay_ms=20, jitter_ms=10, bandwidth_mbps=50, loss_percent=10, seed=seed)
    one = stream(spec)
    entered_s = list(accumulate(gaps_s))
    released_s = [one.release_s(size, 0, at_s) for at_s in entered_s]
    assert all(earlier <= later for earlier, later in pairwise(released_s))
    assert all(out_s >= in_s + 0.020 for in_s, out_s in zip(entered_s, released_s, strict=True))


def test_jitter_has_the_documented_distribution() -> None:
    """Mean, median, p99 and maximum of the module's docstring."""
    direction = LinkDirection(LinkSpec(jitter_ms=10), up=True)
    jitter_ms = sorted(direction.release_s(1, moment) * 1e3 - moment * 1e3 for moment in range(0, 80_000, 5))
    count = len(jitter_ms)
    assert sum(jitter_ms) / count == pytest.approx(9.7, rel=0.05)  # 10, reduced by the cut.
    assert jitter_ms[count // 2] == pytest.approx(5.2, rel=0.1)
    assert jitter_ms[round(count * 0.99)] == pytest.approx(73, rel=0.15)
    assert jitter_ms[-1] <= 100 + 1e-6


@pytest.mark.parametrize(
    ("following", "recovery_s"), [(3 * SEGMENT_BYTES, 0.1), (2 * SEGMENT_BYTES, 0.3), (0, 0.3)], ids=str
)
def test_a_lost_segment_takes_a_round_trip_or_a_timeout(following: int, recovery_s: float) -> None:
    """Three following segments trigger a fast retransmit (RFC 5681); the last segments of a message wait for the timer."""
    spec = LinkSpec(delay_ms=50, loss_percent=20)
    counted: Counter[str] = Counter()
    one = stream(spec, counted=counted)
    delays_s = []
    for moment in range(0, 10_000, 10):
        before = counted["segments_lost"]
        released_s = one.release_s(SEGMENT_BYTES, following, float(moment))
        if counted["segments_lost"] > before:
            delays_s.append(released_s - moment - 0.05)
    assert min(delays_s) == pytest.approx(recovery_s)
    again = 0.3  # The retransmission of a retransmission waits for the timer.
    assert any(value == pytest.approx(recovery_s + again) for value in delays_s)
    assert len(delays_s) == pytest.approx(200, rel=0.25)  # 20 % of 1000 segments.


def test_the_same_seed_gives_the_same_link() -> None:
    """A repeated study must get the same conditions."""
    spec = LinkSpec(jitter_ms=5, loss_percent=5, seed=7)

    def released_s(number: int, seed: int = 7) -> list[float]:
        one = stream(spec.model_copy(update={"seed": seed}), number=number)
        return [one.release_s(5000, 0, float(moment)) for moment in range(300)]

    assert released_s(1) == released_s(1)
    assert released_s(1) != released_s(2)
    assert released_s(1) != released_s(1, seed=8)


@given(cuts=st.lists(st.integers(0, 20_000), max_size=6), seed=st.integers(0, 1000))
def test_flipped_bits_do_not_depend_on_the_size_of_pieces(cuts: list[int], seed: int) -> None:
    """The kernel decides about the sizes of pieces; a seed must still reproduce the same corruption."""
    spec = LinkSpec(corrupt_per_mb=300, seed=seed)
    data = bytes(20_000)
    counted: Counter[str] = Counter()
    cut = stream(spec, counted=counted)
    edges = [0, *sorted(cuts), len(data)]
    flipped = b"".join(cut.corrupted(data[start:end]) for start, end in pairwise(edges))
    assert flipped == stream(spec).corrupted(data)
    assert int.from_bytes(flipped).bit_count() <= counted["bits_flipped"]


def test_bits_flip_at_the_requested_rate() -> None:
    """`corrupt_per_mb` is a rate per million bytes."""
    counted: Counter[str] = Counter()
    stream(LinkSpec(corrupt_per_mb=500), counted=counted).corrupted(bytes(1_000_000))
    assert counted["bits_flipped"] == pytest.approx(500, rel=0.2)
