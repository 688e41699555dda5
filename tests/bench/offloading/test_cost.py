import math
from pathlib import Path

import pandas as pd
import pytest

from bench.logs.run_log import RunLog
from bench.offloading.cost import CostError, footage_cost, throughput_hz


@pytest.mark.parametrize(("seconds", "price"), [(409.36, 294.74), (25.40, 18.29)])
def test_a_day_of_footage_costs_what_the_comparison_of_2022_found(seconds: float, price: float) -> None:
    """Its prices are ours at its durations: 409 s (TF Serving) and 25 s (Triton) for 1000 images, which it rounded."""
    cost = footage_cost(1000 / seconds, 1.25)
    assert cost.price == pytest.approx(price, abs=0.01)
    assert cost.frames == 24 * 86_400
    assert cost.hours == pytest.approx(price / 1.25, abs=0.01)
    whole = round(seconds)
    assert footage_cost(1000 / (whole - 0.5), 1.25).price < price < footage_cost(1000 / (whole + 0.5), 1.25).price


def test_footage_of_another_kind_is_priced_in_proportion() -> None:
    """Half a day at 10 frames a second, in another currency, at twice the price an hour."""
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
def test_what_cannot_be_priced_is_refused_by_name(wrong: dict[str, float], named: str) -> None:
    """A price of infinity, or below zero, would be printed like any other."""
    given = {"throughput_hz": 1.0, "price_per_hour": 1.0, "footage_hz": 24.0, "footage_hours": 24.0} | wrong
    with pytest.raises(CostError, match=f"{named} is "):
        footage_cost(
            given["throughput_hz"],
            given["price_per_hour"],
            footage_hz=given["footage_hz"],
            footage_hours=given["footage_hours"],
        )


def _run(rows: list[tuple[str, int | None, int | None]]) -> RunLog:
    frames = pd.DataFrame(rows, columns=["outcome", "t_due_ns", "t_mask_decoded_ns"])
    frames = frames.astype({"t_due_ns": "Int64", "t_mask_decoded_ns": "Int64"})
    return RunLog(Path("run"), "run", frames, {}, pd.DataFrame(), ())


def test_throughput_is_what_came_back_answered() -> None:
    """Frames sent and lost cost a vehicle its bandwidth and give it nothing."""
    start = 1_700_000_000_000_000_000
    rows: list[tuple[str, int | None, int | None]] = [
        ("answered", start, start + 500_000_000),
        ("lost", start + 100_000_000, None),
        ("answered", start + 200_000_000, start + 400_000_000),
        ("dropped", start + 9_000_000_000, None),
    ]
    assert throughput_hz(_run(rows)) == pytest.approx(2 / 0.5)


def test_nothing_answered_has_no_throughput() -> None:
    """Not zero: nobody knows what the worker could have done."""
    assert math.isnan(throughput_hz(_run([("lost", 1, None)])))
    assert math.isnan(throughput_hz(_run([])))
