import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.faults import chaos as chaos_module
from bench.faults.chaos import Chaos
from bench.harness.frame_accounting import NO_MASKS, FrameAccounts
from bench.harness.process_log import Life
from bench.resilience.soak import MOST_PER_HOUR, Plan, Soaked, growth

HALF_HOUR_S = 1800.0


def _life(seconds: int, rss: Callable[[int], float], role: str = "vehicle") -> Life:
    at = range(0, seconds, 10)
    samples = [round(rss(each)) for each in at]
    return Life(role, "one", 1, [float(each) for each in at], samples, [9] * len(at), [14] * len(at))


def test_a_leak_fails_a_soak() -> None:
    """What the soak is for: a process that takes twice of what it may in an hour."""
    leak_per_s = 2 * MOST_PER_HOUR["rss_bytes"] / 3600
    leaking = growth("vehicle", [_life(1800, lambda at: 9e7 + leak_per_s * at)], HALF_HOUR_S)
    flat = growth("vehicle", [_life(1800, lambda _: 9e7)], HALF_HOUR_S)
    assert len(leaking.failures) == 1
    assert "vehicle" in leaking.failures[0]
    assert "rss_bytes" in leaking.failures[0]
    assert not flat.failures
    soaked = Soaked(Plan(HALF_HOUR_S, 1), FrameAccounts(masks_checked=1), (), (flat, leaking), ())
    assert soaked.failures == leaking.failures
    assert soaked.told()["verdict"] == "FAILS"


def test_a_short_life_says_nothing_of_an_hour() -> None:
    """A worker that was killed after a minute of warming up is no leak; its peak is told all the same."""
    lives = [_life(60, lambda at: 1e6 * at), _life(1700, lambda _: 5e7)]
    told = growth("vehicle", lives, HALF_HOUR_S)
    assert (told.processes, told.long_lived) == (2, 1)
    assert told.most_rss_bytes == 50_000_000
    assert not told.failures


def test_where_nobody_lived_long_enough_nothing_is_promised() -> None:
    """A soak that killed everybody all the time must not pass for want of a slope."""
    assert len(growth("worker", [_life(60, lambda _: 5e7, "worker")], HALF_HOUR_S).failures) == len(MOST_PER_HOUR)


def test_a_short_soak_judges_no_slope() -> None:
    """Three minutes told of an hour would be twenty times what an allocator took last."""
    short = growth("vehicle", [_life(180, lambda at: 1e5 * at)], 180.0)
    assert not short.judged
    assert not short.failures


def test_who_ends_by_itself_fails_a_soak() -> None:
    """A vehicle that gave up and was started again has lost no frame, and yet it must not pass."""
    seen = FrameAccounts(masks_checked=1)
    assert Soaked(Plan(HALF_HOUR_S, 1), seen, (), (), ("vehicle-2 ended by itself",)).failures
    assert not Soaked(Plan(HALF_HOUR_S, 1), seen, (), (), ()).failures


def test_a_soak_without_a_mask_proves_no_label() -> None:
    """Nobody was answered, so nobody was answered wrongly."""
    assert Soaked(Plan(HALF_HOUR_S, 1), FrameAccounts(), (), (), ()).failures == [NO_MASKS]


@dataclass
class _Site:
    """What chaos is done to, which only notes it."""

    rig: Any
    worker_names: tuple[str, ...] = ("worker-1", "worker-2", "worker-3")
    vehicle_names: tuple[str, ...] = ("vehicle-1", "vehicle-2")
    done: list[tuple[str, str, float]] = field(default_factory=list)


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str, float]]]:
    """Strikes a site that only notes what is done to it."""

    def noting(name: str) -> Callable[[Any, str, float], None]:
        return lambda site, to, seconds: site.done.append((name, to, seconds))

    faults = {
        name: chaos_module.Fault(noting(name), fault.among, fault.between_s, fault.weight)
        for name, fault in chaos_module.FAULTS.items()
    }
    monkeypatch.setattr(chaos_module, "FAULTS", faults)

    def strike(seed: int, count: int, **how: Any) -> list[tuple[str, str, float]]:
        site = _Site(SimpleNamespace(chance=random.Random(seed), say=lambda _: None))
        chaos = Chaos(cast("Any", site))
        for _ in range(count):
            chaos.strike(**{"most_s": 60.0, "may_kill_broker": True, **how})
        assert [deed.fault for deed in chaos.deeds] == [name for name, _, _ in site.done]
        return site.done

    return strike


def test_a_seed_draws_the_same_faults(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """A soak that failed can be played again by its printed seed."""
    assert strikes(7, 100) == strikes(7, 100)
    assert strikes(7, 100) != strikes(8, 100)


def test_every_fault_comes(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """One that is never drawn is never survived."""
    assert {name for name, _, _ in strikes(1, 600)} == set(chaos_module.FAULTS)


def test_those_whose_memory_is_told_live_through_it(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """A slope needs processes that last: the first of each role, and from some time on the broker."""
    done = strikes(1, 600, may_kill_broker=False)
    assert not any(name == "kill broker" for name, _, _ in done)
    ended = {to for name, to, _ in done if name.startswith(("kill", "drain"))}
    assert ended == {"worker-2", "worker-3", "vehicle-2"}


def test_a_fault_lasts_no_longer_than_is_left(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """A link that is still dark at the end would leave vehicles without answers."""
    assert all(seconds <= 0.5 for _, _, seconds in strikes(1, 100, most_s=0.5))
