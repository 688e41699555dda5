import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs.run_log import RunLog
from analysis.offloading import CostError, footage_cost, throughput_hz


@pytest.mark.parametrize(("seconds", "price"), [(409.36, 294.74), (25.40, 18.29)])
def test_prices_match_the_comparison_of_2022(seconds: float, price: float) -> None:
    """It rounded the durations for 1000 images to 409 s (TF Serving) and 25 s (Triton)."""
    cost = footage_cost(1000 / seconds, 1.25)
    assert cost.price == pytest.approx(price, abs=0.01)
    assert cost.frames == 24 * 86_400
    assert cost.hours == pytest.approx(price / 1.25, abs=0.01)
    whole = round(seconds)
    assert footage_cost(1000 / (whole - 0.5), 1.25).price < price < footage_cost(1000 / (whole + 0.5), 1.25).price


def test_the_price_is_proportional_to_frames_and_hourly_price() -> None:
    """Half a day at 10 frames per second, in another currency, at twice the price per hour."""
    cost = footage_cost(5.0, 2.5, currency="USD", footage_hz=10, footage_hours=12)
    assert (cost.frames, cost.hours, cost.price, cost.currency) == (432_000, 24.0, 60.0, "USD")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"throughput_hz": 0.0}, "throughput_hz"),
        ({"throughput_hz": math.nan}, "throughput_hz"),
        ({"price_per_hour": -1.0}, "price_per_hour"),
        ({"price_per_hour": math.inf}, "price_per_hour"),
        ({"footage_hz": -24.0}, "footage_hz"),
        ({"footage_hours": 0.0}, "footage_hours"),
    ],
)
def test_an_invalid_value_is_named_in_the_error(wrong: dict[str, float], named: str) -> None:
    """Otherwise an infinite or negative price would be printed."""
    given = {"throughput_hz": 1.0, "price_per_hour": 1.0, "footage_hz": 24.0, "footage_hours": 24.0} | wrong
    with pytest.raises(CostError, match=f"{named} is "):
        footage_cost(
            given["throughput_hz"],
            given["price_per_hour"],
            footage_hz=given["footage_hz"],
            footage_hours=given["footage_hours"],
        )


def _run(rows: Sequence[tuple[str, int | None, float | None]]) -> RunLog:
    frames = pd.DataFrame(rows, columns=["outcome", "t_due_ns", "total_ms"])
    frames = frames.astype({"t_due_ns": "Int64", "total_ms": "float64"})
    return RunLog(Path("run"), "run", frames, {}, pd.DataFrame(), ())


def test_throughput_counts_frames_with_a_result_only() -> None:
    """Lost and dropped frames do not count, and do not extend the time."""
    start = 1_700_000_000_000_000_000
    rows = [
        ("answered", start, 500.0),
        ("lost", start + 100_000_000, None),
        ("answered", start + 200_000_000, 200.0),
        ("dropped", start + 9_000_000_000, None),
    ]
    assert throughput_hz(_run(rows)) == pytest.approx(2 / 0.5)


def test_throughput_counts_results_of_every_origin() -> None:
    """With a gate, a worker serves more frames per second than it is sent."""
    rows = [("answered", 0, 100.0), ("reused", 100_000_000, 5.0), ("answered_locally", 400_000_000, 100.0)]
    assert throughput_hz(_run(rows)) == pytest.approx(3 / 0.5)


def test_throughput_without_a_result_is_nan() -> None:
    """The capacity of the worker is unknown, not 0."""
    assert math.isnan(throughput_hz(_run([("lost", 1, None)])))
    assert math.isnan(throughput_hz(_run([])))
