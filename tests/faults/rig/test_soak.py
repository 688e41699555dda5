import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from analysis.logs.frame_accounting import FrameAccounts
from tests.faults.soak import GROWTH_LIMITS, SoakPlan, measure_growth, summarise
from tests.support.faults import chaos as chaos_module
from tests.support.faults.chaos import Chaos
from tests.support.faults.finding import NO_MASKS
from tests.support.faults.rig import ROOT
from tests.support.process_log import ProcessHistory

HALF_HOUR_S = 1800.0


def _history(seconds: int, rss: Callable[[int], float], role: str = "vehicle") -> ProcessHistory:
    at = range(0, seconds, 10)
    samples = [round(rss(each)) for each in at]
    return ProcessHistory(role, "one", 1, [float(each) for each in at], samples, [9] * len(at), [14] * len(at))


def test_a_leak_fails_a_soak() -> None:
    """The memory of a process grows by twice the limit per hour."""
    leak_per_s = 2 * GROWTH_LIMITS["rss_bytes"] / 3600
    leaking = measure_growth("vehicle", [_history(1800, lambda at: 9e7 + leak_per_s * at)], HALF_HOUR_S)
    flat = measure_growth("vehicle", [_history(1800, lambda _: 9e7)], HALF_HOUR_S)
    assert len(leaking.failures) == 1
    assert "vehicle" in leaking.failures[0]
    assert "rss_bytes" in leaking.failures[0]
    assert not flat.failures
    result = summarise(SoakPlan(), FrameAccounts(masks_checked=1), (flat, leaking), ())
    assert result["failures"] == leaking.failures
    assert result["verdict"] == "FAILS"


def test_the_growth_of_a_short_lived_process_is_not_judged() -> None:
    """A worker killed during its warm-up does not leak; its peak still counts."""
    histories = [_history(60, lambda at: 1e6 * at), _history(1700, lambda _: 5e7)]
    found = measure_growth("vehicle", histories, HALF_HOUR_S)
    assert (found.processes, found.long_lived) == (2, 1)
    assert found.most_rss_bytes == 50_000_000
    assert not found.failures


def test_a_role_without_long_lived_processes_fails() -> None:
    """A soak that kills all processes of a role must not pass because slopes are missing."""
    growth = measure_growth("worker", [_history(60, lambda _: 5e7, "worker")], HALF_HOUR_S)
    assert len(growth.failures) == len(GROWTH_LIMITS)


def test_a_short_soak_does_not_judge_slopes() -> None:
    """Extrapolating three minutes to an hour would multiply the last step of an allocator by twenty."""
    short = measure_growth("vehicle", [_history(180, lambda at: 1e5 * at)], 180.0)
    assert not short.judged
    assert not short.failures


@pytest.mark.parametrize(
    ("masks_checked", "broken", "failures"),
    [(1, (), []), (1, ("vehicle-2 ended by itself",), ["vehicle-2 ended by itself"]), (0, (), [NO_MASKS])],
)
def test_a_soak_fails_if_a_process_ended_or_no_mask_was_checked(
    masks_checked: int, broken: tuple[str, ...], failures: list[str]
) -> None:
    """A vehicle that ended and was restarted may have lost no frame; without masks, no label was checked."""
    accounts = FrameAccounts(masks_checked=masks_checked)
    assert summarise(SoakPlan(), accounts, (), broken)["failures"] == failures


@pytest.mark.mosquitto
def test_a_short_soak_runs_to_its_end(tmp_path: Path) -> None:
    """Real processes, a few faults, and the tables of the result."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.soak",
        "--minutes",
        "0.2",
        "--seed",
        "1",
        "--out",
        str(tmp_path / "soak"),
    ]
    command += ["--vehicles", "2", "--workers", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert "All guarantees hold." in done.stdout
    assert "…" not in done.stdout


@dataclass
class _Site:
    """A site that records the faults."""

    rig: Any
    worker_names: tuple[str, ...] = ("worker-1", "worker-2", "worker-3")
    vehicle_names: tuple[str, ...] = ("vehicle-1", "vehicle-2")
    done: list[tuple[str, str, float]] = field(default_factory=list)


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str, float]]]:
    """Causes faults at a site that only records them."""

    def recording(name: str) -> Callable[[Any, str, float], None]:
        return lambda site, to, seconds: site.done.append((name, to, seconds))

    faults = {
        name: chaos_module.Fault(recording(name), fault.among, fault.between_s, fault.weight)
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
    """A failed soak can be repeated with its printed seed."""
    assert strikes(7, 100) == strikes(7, 100)
    assert strikes(7, 100) != strikes(8, 100)


def test_every_fault_occurs(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """A fault that is never drawn would not be tested."""
    assert {name for name, _, _ in strikes(1, 600)} == set(chaos_module.FAULTS)


def test_the_first_node_of_each_role_is_never_ended(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """Slopes need long-lived processes: the first of each role, and after some time the broker."""
    done = strikes(1, 600, may_kill_broker=False)
    assert not any(name == "kill broker" for name, _, _ in done)
    ended = {to for name, to, _ in done if name.startswith(("kill", "drain"))}
    assert ended == {"worker-2", "worker-3", "vehicle-2"}


def test_a_fault_ends_within_the_remaining_time(strikes: Callable[..., list[tuple[str, str, float]]]) -> None:
    """A link that is down at the end would leave frames unanswered."""
    assert all(seconds <= 0.5 for _, _, seconds in strikes(1, 100, most_s=0.5))
