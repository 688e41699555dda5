from collections import Counter
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.link.link import PROFILES, LinkSpec
from bench.link.timing import BUFFER_S, SEGMENT_BYTES, Lane, Stream

MEGABIT_BYTES = 125_000


def stream(spec: LinkSpec, *, up: bool = True, number: int = 1, counted: Counter[str] | None = None) -> Stream:
    """A connection of its own over a link of its own."""
    return Stream(Lane(spec, up=up), number, Counter() if counted is None else counted)


def test_a_link_without_fault_takes_no_time() -> None:
    """The profile `none` is the baseline that the others are compared with."""
    assert stream(PROFILES["none"]).release_s(100_000, 0, 5.0) == 5.0


def test_each_direction_has_its_own_delay_and_bandwidth() -> None:
    """Mobile networks are asymmetric, and the clock bound must be tried on such."""
    spec = LinkSpec(delay_ms=10, delay_up_ms=30, bandwidth_mbps=8, bandwidth_down_mbps=80)
    assert stream(spec, up=True).release_s(1000, 0, 1.0) == pytest.approx(1.0 + 0.030 + 0.001)
    assert stream(spec, up=False).release_s(1000, 0, 1.0) == pytest.approx(1.0 + 0.010 + 0.0001)


def test_connections_share_the_bandwidth() -> None:
    """Four vehicles behind one radio do not get it four times."""
    lane = Lane(LinkSpec(bandwidth_mbps=1), up=True)
    streams = [Stream(lane, number, Counter()) for number in range(4)]
    last_s = max(one.release_s(MEGABIT_BYTES // 4, 0, 0.0) for one in streams)
    assert last_s == pytest.approx(1.0)


def test_a_full_buffer_keeps_its_sender_waiting() -> None:
    """Otherwise a narrow link would hold whole drives in memory, and every frame would seem sent at once."""
    lane = Lane(LinkSpec(bandwidth_mbps=1), up=True)
    one = Stream(lane, 1, Counter())
    one.release_s(MEGABIT_BYTES, 0, 0.0)
    assert lane.wait_s(0.0) == pytest.approx(1.0 - BUFFER_S)
    assert lane.wait_s(1.0) == 0.0


@given(
    gaps_s=st.lists(st.floats(0, 0.1), min_size=2, max_size=50),
    size=st.integers(1, 10 * SEGMENT_BYTES),
    seed=st.integers(0, 1000),
)
def test_bytes_come_in_order_and_never_before_the_delay(gaps_s: list[float], size: int, seed: int) -> None:
    """TCP delivers in order; a late piece holds up all behind it."""
    spec = LinkSpec(delay_ms=20, jitter_ms=10, bandwidth_mbps=50, loss_percent=10, seed=seed)
    one = stream(spec)
    entered_s = list(accumulate(gaps_s))
    released_s = [one.release_s(size, 0, at_s) for at_s in entered_s]
    assert all(earlier <= later for earlier, later in pairwise(released_s))
    assert all(out_s >= in_s + 0.020 for in_s, out_s in zip(entered_s, released_s, strict=True))


def test_jitter_has_its_mean_a_long_tail_and_an_end() -> None:
    """The docstring states the distribution; a study's reader relies on it."""
    lane = Lane(LinkSpec(jitter_ms=10), up=True)
    jitter_ms = sorted(lane.release_s(1, moment) * 1e3 - moment * 1e3 for moment in range(0, 80_000, 5))
    count = len(jitter_ms)
    assert sum(jitter_ms) / count == pytest.approx(9.7, rel=0.05)  # 10, less what the cut takes away.
    assert jitter_ms[count // 2] == pytest.approx(5.2, rel=0.1)
    assert jitter_ms[round(count * 0.99)] == pytest.approx(73, rel=0.15)
    assert jitter_ms[-1] <= 100 + 1e-6


@pytest.mark.parametrize(
    ("following", "recovery_s"), [(3 * SEGMENT_BYTES, 0.1), (2 * SEGMENT_BYTES, 0.3), (0, 0.3)], ids=str
)
def test_a_lost_segment_takes_a_round_trip_or_a_timeout(following: int, recovery_s: float) -> None:
    """Three segments behind it tell the sender at once (RFC 5681); the last of a message waits for the timer."""
    spec = LinkSpec(delay_ms=50, loss_percent=20)
    counted: Counter[str] = Counter()
    one = stream(spec, counted=counted)
    took_s = []
    for moment in range(0, 10_000, 10):
        before = counted["segments_lost"]
        released_s = one.release_s(SEGMENT_BYTES, following, float(moment))
        if counted["segments_lost"] > before:
            took_s.append(released_s - moment - 0.05)
    assert min(took_s) == pytest.approx(recovery_s)
    again = 0.3  # The first repetition of a repetition waits for the timer.
    assert any(value == pytest.approx(recovery_s + again) for value in took_s)
    assert len(took_s) == pytest.approx(200, rel=0.25)  # Of 1000 segments.


def test_the_same_seed_gives_the_same_link() -> None:
    """A study names its seed; whoever repeats it must get the same weather."""
    spec = LinkSpec(jitter_ms=5, loss_percent=5, seed=7)

    def released_s(number: int, seed: int = 7) -> list[float]:
        one = stream(spec.model_copy(update={"seed": seed}), number=number)
        return [one.release_s(5000, 0, float(moment)) for moment in range(300)]

    assert released_s(1) == released_s(1)
    assert released_s(1) != released_s(2)
    assert released_s(1) != released_s(1, seed=8)


@given(cuts=st.lists(st.integers(0, 20_000), max_size=6), seed=st.integers(0, 1000))
def test_bits_flip_at_the_same_places_however_the_stream_is_cut(cuts: list[int], seed: int) -> None:
    """The kernel cuts a stream as it likes; a bug found with a seed must be found again with it."""
    spec = LinkSpec(corrupt_per_mb=300, seed=seed)
    data = bytes(20_000)
    counted: Counter[str] = Counter()
    cut = stream(spec, counted=counted)
    edges = [0, *sorted(cuts), len(data)]
    flipped = b"".join(cut.corrupted(data[start:end]) for start, end in pairwise(edges))
    assert flipped == stream(spec).corrupted(data)
    assert int.from_bytes(flipped).bit_count() <= counted["bits_flipped"]


def test_bits_flip_as_often_as_asked() -> None:
    """`corrupt_per_mb` is a rate per million bytes."""
    counted: Counter[str] = Counter()
    stream(LinkSpec(corrupt_per_mb=500), counted=counted).corrupted(bytes(1_000_000))
    assert counted["bits_flipped"] == pytest.approx(500, rel=0.2)
