import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import clock
from shared.clock import MAX_DRIFT_PPM, Exchange, Offset, OffsetEstimator

SECOND_NS = 10**9
MS = 10**6
NS = st.integers(0, SECOND_NS)
Chance = Callable[[random.Random], float]  # Milliseconds that a crossing takes beyond its least.


def uniform(chance: random.Random) -> float:
    """A scheduler's jitter."""
    return chance.uniform(0, 2)


def heavy_tailed(chance: random.Random) -> float:
    """Now and then a queue: its mean is 2 ms, its worst of a minute more than 50."""
    return chance.paretovariate(1.5) - 1


@dataclass(frozen=True)
class World:
    """Another node's clock and the way to it, in a time of the test's own."""

    offset_ns: int = 0
    drift_ppm: float = 0.0
    up_ms: float = 10.0
    down_ms: float = 10.0
    chance: Chance = uniform

    def truth(self, at_ns: int) -> int:
        """Their clock minus ours at a moment of ours."""
        return self.offset_ns + round(at_ns * self.drift_ppm / 1e6)

    def exchange(self, at_ns: int, chance: random.Random, work_ms: float = 0.0) -> Exchange:
        """One that begins at a moment of ours."""
        there = at_ns + round((self.up_ms + self.chance(chance)) * MS)
        done = there + round(work_ms * MS)
        back = done + round((self.down_ms + self.chance(chance)) * MS)
        return Exchange(at_ns, there + self.truth(there), done + self.truth(done), back)


@dataclass(frozen=True)
class Judged:
    """An estimate held against the truth, in nanoseconds."""

    error: int
    bound: int
    one_way: int  # The worse of its two crossings.

    @property
    def holds(self) -> bool:
        """Whether it is as good as it says; the two halves are whole nanoseconds."""
        return max(self.error, self.one_way) <= self.bound + 2


def live(world: World, seed: int, seconds: float = 60.0, gap: tuple[float, float] = (0.0, 0.0)) -> list[Judged]:
    """Probe as a vehicle does, with a silence in the `gap`, and judge a frame every 0.31 s."""
    chance = random.Random(seed)
    probes = [0.02 * i for i in range(16)] + [
        0.8 + 0.5 * i + chance.uniform(-0.1, 0.1) for i in range(int(2 * seconds))
    ]
    probes = [at for at in probes if not gap[0] <= at < gap[1]]
    frames = [0.4 + 0.31 * i for i in range(int((seconds - 1) / 0.31))]
    journeys = [(world.exchange(round(at * SECOND_NS), chance), False) for at in probes]
    journeys += [(world.exchange(round(at * SECOND_NS), chance, work_ms=40.0), True) for at in frames]
    estimator, judged = OffsetEstimator(), []
    for exchange, is_frame in sorted(journeys, key=lambda journey: journey[0].returned_ns):
        if not is_frame:
            estimator.add(exchange)
            continue
        offset = estimator.during(exchange)
        assert offset is not None
        judged.append(judge(world, exchange, offset))
    return judged


def judge(world: World, exchange: Exchange, offset: Offset) -> Judged:
    """Hold what a row would state against the truth."""
    up_ns = exchange.received_ns - exchange.sent_ns - offset.offset_ns
    down_ns = exchange.returned_ns - exchange.replied_ns + offset.offset_ns
    assert min(up_ns, down_ns) >= 0, "a crossing that takes less than no time"
    there = round((exchange.received_ns - world.offset_ns) / (1 + world.drift_ppm / 1e6))
    done = round((exchange.replied_ns - world.offset_ns) / (1 + world.drift_ppm / 1e6))
    errors = [abs(offset.offset_ns - world.truth(at)) for at in (exchange.sent_ns, there, done, exchange.returned_ns)]
    one_way = max(abs(up_ns - (there - exchange.sent_ns)), abs(down_ns - (exchange.returned_ns - done)))
    return Judged(max(errors), offset.error_ns, one_way)


@pytest.fixture(autouse=True)
def _right_clock() -> Iterator[None]:
    """The next test's clock is right again."""
    yield
    clock.skew_clock(0, 0)


def test_time_never_decreases_and_is_close_to_the_wall_clock() -> None:
    """Stamps are compared with the sensor's wall-clock stamps and subtracted from each other."""
    read = [clock.now_ns() for _ in range(1000)]
    assert all(earlier <= later for earlier, later in pairwise(read))
    assert abs(read[-1] - time.time_ns()) < 3600 * SECOND_NS


def test_a_stepped_wall_clock_moves_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """NTP steps clocks on the first fix after boot: a negative latency would follow."""
    before = clock.now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before <= clock.now_ns() < before + 60 * SECOND_NS


def test_a_clock_is_wrong_by_as_much_as_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proofs of the bound take this for the truth."""
    monotonic_ns = 10**12
    monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic_ns)
    right_ns = clock.now_ns()
    clock.skew_clock(-3 * SECOND_NS, 100)
    assert clock.now_ns() == right_ns - 3 * SECOND_NS
    monotonic_ns += 60 * SECOND_NS
    assert clock.now_ns() == right_ns + 57 * SECOND_NS + 6 * MS
    clock.skew_clock(0, 0)
    assert clock.now_ns() == right_ns + 60 * SECOND_NS


@given(offset=st.integers(-(10**15), 10**15), up=NS, at_work=NS, down=NS)
def test_the_true_offset_lies_within_an_exchange_however_asymmetric_the_link(
    offset: int, up: int, at_work: int, down: int
) -> None:
    """All bounds are made of this one."""
    received = up + offset
    exchange = Exchange(0, received, received + at_work, up + at_work + down)
    assert exchange.delay_ns == up + down
    assert exchange.least_ns <= offset <= exchange.most_ns
    assert abs(exchange.offset_ns - offset) <= exchange.delay_ns / 2 + 1
    assert exchange.is_consistent


@pytest.mark.parametrize(
    "exchange", [Exchange(5, 0, 0, 4), Exchange(0, 5, 4, 10), Exchange(0, 0, 11, 10)], ids=["ours", "theirs", "both"]
)
def test_what_ends_before_it_begins_is_impossible(exchange: Exchange) -> None:
    """A liar's times would spoil the estimate for everyone after."""
    assert not exchange.is_consistent


@pytest.mark.parametrize("chance", [uniform, heavy_tailed])
@pytest.mark.parametrize("offset_s", [0, 3, -3])
@pytest.mark.parametrize("drift_ppm", [0, 100, -100])
@pytest.mark.parametrize("ways_ms", [(10, 10), (20, 5), (1, 60), (0.2, 0.2)], ids=str)
def test_every_row_is_as_true_as_it_says(
    chance: Chance, offset_s: int, drift_ppm: float, ways_ms: tuple[float, float]
) -> None:
    """The promise of `clock_error_ms`, for the offset and both crossings, at every moment of the frame's journey."""
    world = World(offset_s * SECOND_NS, drift_ppm, *ways_ms, chance)
    assert all(row.holds for row in live(world, seed=7, seconds=30))


@pytest.mark.parametrize("drift_ppm", [0, 100, -100])
@pytest.mark.parametrize("seed", range(5))
def test_on_a_symmetric_link_the_estimate_errs_by_less_than_a_millisecond(drift_ppm: float, seed: int) -> None:
    """From the first rows on, though chance moves each crossing by up to two."""
    rows = live(World(3 * SECOND_NS, drift_ppm), seed)
    assert max(row.error for row in rows) < MS
    assert median(row.error for row in rows) < MS / 5


def test_an_asymmetric_link_moves_the_estimate_by_half_and_the_bound_says_so() -> None:
    """What nobody can know without a common clock must not be claimed."""
    rows = live(World(up_ms=20, down_ms=5), seed=1)
    assert median(row.error for row in rows) == pytest.approx(7.5 * MS, rel=0.1)
    assert min(row.bound for row in rows) >= 12.5 * MS


@pytest.mark.parametrize("drift_ppm", [100, -100])
def test_a_silence_widens_the_bound_and_the_next_exchange_ends_it(drift_ppm: float) -> None:
    """A tunnel: for a minute nothing answers, and then the link is there again."""
    rows = live(World(SECOND_NS, drift_ppm), seed=3, seconds=100, gap=(20.0, 80.0))
    assert all(row.holds for row in rows)
    before, within, after_ns = rows[60], rows[240], min(row.bound for row in rows[-30:])
    assert before.bound + MS < within.bound < 13 * MS  # The frame's own exchange holds it even then.
    assert after_ns < before.bound + MS


def test_the_bound_allows_for_any_drift_up_to_its_most() -> None:
    """A daemon slews the clock one way, then the other: no line fits that."""
    estimator, chance = OffsetEstimator(), random.Random(5)
    truth_ns, last_ns = 0.0, 0
    for second in range(1, 200):
        at_ns = second * SECOND_NS
        rate = MAX_DRIFT_PPM * (1 if second // 20 % 2 else -1)
        truth_ns += (at_ns - last_ns) * rate / 1e6
        last_ns = at_ns
        up_ns, down_ns = (round(chance.uniform(0.1, 2) * MS) for _ in range(2))
        exchange = Exchange(at_ns - up_ns, at_ns + round(truth_ns), at_ns + round(truth_ns), at_ns + down_ns)
        if second > 1:
            offset = estimator.during(exchange)
            assert offset is not None
            assert abs(offset.offset_ns - truth_ns) <= offset.error_ns + 2
        estimator.add(exchange)


def test_a_clock_that_is_changed_begins_anew() -> None:
    """A machine that slept, or was moved: what was known of its clock is of no use any more."""
    estimator, chance = OffsetEstimator(), random.Random(1)
    before, after = World(offset_ns=0), World(offset_ns=5 * SECOND_NS)
    for second in range(5):
        estimator.add(before.exchange(second * SECOND_NS, chance))
    frame = after.exchange(5 * SECOND_NS, chance)
    assert estimator.during(frame) is None
    estimator.add(frame)
    for at_ns in (5 * SECOND_NS, 6 * SECOND_NS):
        exchange = after.exchange(at_ns, chance)
        offset = estimator.during(exchange)
        assert offset is not None
        assert judge(after, exchange, offset).holds


def test_a_clock_that_is_changed_by_less_than_a_journey_begins_anew() -> None:
    """A virtual machine that stood still for a moment: what it says then contradicts what was known only just not."""
    estimator, chance = OffsetEstimator(), random.Random(1)
    before, after = World(offset_ns=0), World(offset_ns=20 * MS)
    for second in range(20):
        estimator.add(before.exchange(second * SECOND_NS, chance))
    for second in range(20, 60):
        exchange = after.exchange(second * SECOND_NS, chance)
        estimator.add(exchange)
        offset = estimator.during(exchange)
        assert offset is not None
        assert judge(after, exchange, offset).holds


def test_an_exchange_that_comes_late_takes_nothing_away() -> None:
    """Two threads bring them, in any order; one that was overtaken is still true."""
    world, chance = World(SECOND_NS, 100), random.Random(2)
    exchanges = [world.exchange(i * SECOND_NS, chance) for i in range(100)]
    chance.shuffle(exchanges)
    estimator = OffsetEstimator()
    for exchange in exchanges:
        estimator.add(exchange)
        offset = estimator.during(exchange)
        assert offset is not None
        assert judge(world, exchange, offset).holds


def test_the_drift_is_found() -> None:
    """It is what carries an estimate over a silence."""
    for drift_ppm in (-100, 20, 100):
        world, chance, estimator = World(SECOND_NS, drift_ppm), random.Random(4), OffsetEstimator()
        for second in range(60):
            exchange = world.exchange(second * SECOND_NS, chance)
            estimator.add(exchange)
        offset = estimator.during(exchange)
        assert offset is not None
        assert offset.drift_ppm == pytest.approx(drift_ppm, abs=30)


def test_an_estimator_without_an_exchange_knows_nothing() -> None:
    """And does not say zero."""
    assert OffsetEstimator().during(Exchange(0, 1, 2, 3)) is None
