"""The split of a burst, held to a burst whose every millisecond is known."""

import pandas as pd
import pytest

from bench.performance.burst import BurstLatency, middle, speed_up, split
from shared.runlog.latency_table import PARTS


def burst(frames: int, workers: int, inference_ms: float) -> pd.DataFrame:
    """Frames that fall due at once, on workers that each take one after the other; 2 ms of link, 1 ms to encode.

    The workers' clocks differ by a second each.
    """
    rows = []
    for place in range(frames):
        waited_ms = place // workers * inference_ms
        row = dict.fromkeys((f"{part}_ms" for part in PARTS), 0.0)
        row |= {"crossing_ms": 2.0, "encoded_ms": 1.0, "dequeued_ms": waited_ms, "inferred_ms": inference_ms}
        ended_ns = round((waited_ms + inference_ms) * 1e6) + place % workers * 10**9
        who = {"worker": f"worker-{place % workers}", "t_inferred_ns": ended_ns}
        rows.append(row | {"total_ms": sum(row.values())} | who)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_queue_of_even_shares_is_the_formula_s(workers: int) -> None:
    """Where the workers share evenly and nothing else waits, measurement and formula must meet: else one is wrong."""
    made = split(burst(20, workers, 50.0), workers)
    assert made.server_queue_ms == made.predicted_queue_ms == (20 - workers) / workers * 50
    assert (made.network_ms, made.client_queue_ms, made.compute_ms) == (2.0, 1.0, 50.0)
    assert made.total_ms == made.predicted_ms + 1.0


def test_a_worker_that_infers_two_at_a_time_is_busy_with_each_for_half_as_long() -> None:
    """A mean of inferences, each slower beside another, would promise a queue twice as long as there can be."""
    pairs = burst(20, 2, 80.0).assign(worker="one", t_inferred_ns=lambda frames: frames["t_inferred_ns"] % 10**9)
    made = split(pairs, 1)
    assert made.busy_ms == 40
    assert made.predicted_queue_ms == 19 * 40


def test_the_four_terms_sum_to_the_latency_of_the_last_answer() -> None:
    """A stage in no term would be time that nobody accounts for; one in two would be counted twice."""
    frames = burst(5, 1, 10.0)
    frames[[f"{part}_ms" for part in PARTS]] += 0.25
    frames["total_ms"] = frames[[f"{part}_ms" for part in PARTS]].sum(axis=1)
    assert split(frames, 1).total_ms == pytest.approx(frames["total_ms"].max())


def test_a_speed_up_is_that_of_the_runs_shown_which_have_the_median() -> None:
    """One run in which a neighbour took the machine must not be what a table shows."""
    alone, two = (
        [BurstLatency(10, 1, 0, 0, total, 0, 0) for total in totals] for totals in ((100, 900, 120), (60, 50, 55))
    )
    assert speed_up(two, alone) == pytest.approx(120 / 55)
    assert middle(alone).total_ms == 120
    assert speed_up(two, alone[:2]) == pytest.approx(100 / 55)  # The quotient of what the table shows, not a mean's.
