from typing import Any

from bench.fleet.fleet_bench import check_targets, target_cases
from bench.fleet.run_record import limiting_part


def _runs(**changes: Any) -> list[dict[str, Any]]:
    """A run of each case and kind of dispatch that meets every target."""
    good = {
        "throughput_hz": 40.0,
        "p99_ratio": 1.2,
        "balanced_after_ms": 300.0,
        "share_after_ms": 200.0,
        "longest_imbalance_s": 0.3,
        "jain": 0.999,
        "dispatch_cpu_ms": 0.05,
        "unaccounted": 0,
    }
    return [
        {**good, "case": case.name, "settings": {"dispatch": dispatch}, **changes}
        for case in target_cases(1.0)
        for dispatch in case.dispatch
    ]


def _missed(runs: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in check_targets(runs) if not each["is_met"]]


def test_runs_that_keep_every_promise_meet_all_targets() -> None:
    """Each target finds its runs."""
    targets = check_targets(_runs())
    assert all(each["is_met"] and each["by_round"] for each in targets)
    assert len(targets) == 9


def test_a_broken_promise_is_named() -> None:
    """One changed measure misses its own target only."""
    assert _missed(_runs(p99_ratio=1.6)) == ["Poisson: p99 ÷ p99 of an ideal queue"]
    assert _missed(_runs(unaccounted=1)) == ["frames unaccounted for"]
    assert _missed(_runs(dispatch_cpu_ms=0.2)) == ["dispatch: ms of CPU per frame"]


def test_a_load_that_is_never_balanced_misses_the_target() -> None:
    """A missing time is worse than any time."""
    assert _missed(_runs(balanced_after_ms=None)) == ["kill -9: ms until balanced"]
    assert _missed(_runs(share_after_ms=None)) == ["joined: ms until it has its share"]


def test_the_part_at_its_limit_is_named() -> None:
    """Workers that are never idle are the limit as long as they are; otherwise a process with a full core is."""
    usage = {"vehicle/fleet": 50.0, "broker": 10.0, "machine": 60.0}

    def limit(throughput_hz: float, offered_hz: float | None = None, **cpu: float) -> str:
        resources = {node: {"cpu_percent": percent} for node, percent in {**usage, **cpu}.items()}
        record = {"throughput_hz": throughput_hz, "capacity_hz": 100.0, "offered_hz": offered_hz}
        return limiting_part({**record, "resources": resources})

    assert limit(98) == "workers"
    assert limit(80, broker=97.0) == "broker"
    assert limit(80, **{"vehicle/fleet": 95.0}) == "fleet"
    assert limit(80, offered_hz=80) == "none"
    assert limit(80) == limit(80, offered_hz=120) == "window"
