from collections.abc import Callable
from itertools import pairwise

import pytest

from bench.harness import OVERHEAD, Comparison, Samples, alternating, compare, frame_samples, overhead_record
from ops.processes.child import BenchError


def _comparison(**rounds: list[list[float]]) -> Comparison:
    """A comparison with the samples of one measure, a list per round."""
    comparison = Comparison(list(rounds))
    for name, samples in rounds.items():
        for values in samples:
            comparison.add(name, {"ms": values})
    return comparison


def test_every_candidate_runs_once_per_round_in_changing_order() -> None:
    """A candidate that always ran after the same one would always meet its warm caches."""
    order = list(alternating(["a", "b", "c"], 6))
    assert [number for number, _ in order] == [number for number in range(6) for _ in range(3)]
    rounds = [[name for number, name in order if number == each] for each in range(6)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    followers = [pair for names in rounds for pair in pairwise(names)]
    assert {followers.count(pair) for pair in followers} == {2}
    assert len(set(followers)) == 6


def test_ratios_are_computed_over_all_rounds_and_within_each() -> None:
    """A machine that slows down in the second round slows down both: the ratio of a round does not change."""
    comparison = _comparison(ours=[[10.0, 30.0], [100.0]], reference=[[20.0, 60.0], [200.0]])
    ratio = comparison.ratio("ours", "reference", "ms")
    assert ratio.value == 0.5
    assert ratio.by_round == (0.5, 0.5)
    least = comparison.ratio("ours", "reference", "ms", min)
    assert (least.value, least.by_round) == (0.5, (0.5, 0.5))


def test_the_median_of_rounds_differs_from_the_ratio_of_medians() -> None:
    """Drift falls on both candidates of a round, so ratios by round are more robust."""
    comparison = _comparison(tls=[[9.0], [19.0], [30.0]], plain=[[10.0], [20.0], [40.0]])
    ratio = comparison.ratio("tls", "plain", "ms")
    assert ratio.by_round == pytest.approx((0.9, 0.95, 0.75))
    assert (ratio.value, ratio.median_of_rounds) == pytest.approx((0.95, 0.9))


def _candidate(fails_in: int | None = None) -> Callable[[int], Samples]:
    def run(number: int) -> Samples:
        if number == fails_in:
            raise BenchError("too slow")
        return {"ms": [float(number)]}

    return run


def test_a_candidate_that_may_fail_is_left_out_of_later_rounds() -> None:
    """One slow variant must not end a comparison of twenty."""
    steps: list[str] = []
    candidates = {"a": _candidate(), "b": _candidate(fails_in=1)}
    comparison = compare(candidates, 3, steps.append, step="TensorFlow, ", may_fail=["b"])
    assert comparison.failed == {"b": "from round 2 on: too slow"}
    assert comparison.names == ["a"]
    assert comparison.samples("a", "ms") == [0.0, 1.0, 2.0]
    assert len(steps) == 5
    assert steps[0] == "TensorFlow, round 1 of 3: a"


def test_the_failure_of_another_candidate_ends_the_comparison() -> None:
    """Without its reference, a comparison has no ratios."""
    with pytest.raises(BenchError, match="too slow"):
        compare({"a": _candidate(fails_in=0), "b": _candidate()}, 1, lambda _: None, may_fail=["b"])


def test_overhead_is_computed_frame_by_frame() -> None:
    """The difference of the medians of total and inference would mix frames."""
    comparison = Comparison(["mqtt"])
    for frames in ([(110, 100), (230, 200), (20, 0)], [(105, 100)]):
        comparison.add(
            "mqtt",
            frame_samples([{"total": total, "inferred": inferred, "bytes_up": 10.0} for total, inferred in frames]),
        )
    assert comparison.samples("mqtt", OVERHEAD) == [10, 30, 20, 5]
    record = overhead_record(comparison, "mqtt")
    assert record["n"] == 4
    assert record["overhead_ms"]["median"] == pytest.approx(15)
    assert record["by_round_ms"] == [20, 5]
    assert record["parts"] == {"total": 107.5, "inferred": 100, "bytes_up": 10}
