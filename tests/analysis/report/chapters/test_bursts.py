"""Splits bursts whose durations are known."""

import pandas as pd
import pytest

from analysis.report.chapters.study.bursts import BurstLatency, median_burst, speed_up, split_burst
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS


def burst(frames: int, workers: int, inference_ms: float) -> pd.DataFrame:
    """Frames that are due at once, for workers that infer one at a time; 2 ms of link, 1 ms to encode.

    The workers' clocks differ by a second each.
    """
    rows = []
    for place in range(frames):
        wait_ms = place // workers * inference_ms
        row = dict.fromkeys((f"{part}_ms" for part in PARTS), 0.0)
        row |= {"crossing_ms": 2.0, "encoded_ms": 1.0, "dequeued_ms": wait_ms, "inferred_ms": inference_ms}
        end_ns = round((wait_ms + inference_ms) * 1e6) + place % workers * 10**9
        worker = {"worker": f"worker-{place % workers}", "t_inferred_ns": end_ns, "outcome": Outcome.ANSWERED.value}
        rows.append(row | {"total_ms": sum(row.values())} | worker)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_queue_of_equal_shares_equals_the_formula(workers: int) -> None:
    """If the workers share equally and nothing else waits, measurement and formula agree."""
    made = split_burst(burst(20, workers, 50.0), workers)
    assert made.server_queue_ms == made.predicted_queue_ms == (20 - workers) / workers * 50
    assert (made.network_ms, made.client_queue_ms, made.compute_ms) == (2.0, 1.0, 50.0)
    assert made.total_ms == made.predicted_ms + 1.0


def test_concurrent_inferences_share_the_busy_time() -> None:
    """The mean duration of concurrent inferences would predict a queue that is twice as long."""
    pairs = burst(20, 2, 80.0).assign(worker="one", t_inferred_ns=lambda frames: frames["t_inferred_ns"] % 10**9)
    made = split_burst(pairs, 1)
    assert made.busy_ms == 40
    assert made.predicted_queue_ms == 19 * 40


def test_the_four_terms_sum_to_the_latency_of_the_last_frame() -> None:
    """Every stage belongs to exactly one term."""
    frames = burst(5, 1, 10.0)
    frames[[f"{part}_ms" for part in PARTS]] += 0.25
    frames["total_ms"] = frames[[f"{part}_ms" for part in PARTS]].sum(axis=1)
    assert split_burst(frames, 1).total_ms == pytest.approx(frames["total_ms"].max())


def test_a_speed_up_is_the_quotient_of_the_median_bursts() -> None:
    """The median ignores a run that other processes slowed down, and matches the values shown in the table."""
    one_worker, two_workers = (
        [BurstLatency(10, 10, 1, 0, 0, total, 0, 0, 0) for total in totals]
        for totals in ((100, 900, 120), (60, 50, 55))
    )
    assert speed_up(two_workers, one_worker) == pytest.approx(120 / 55)
    assert median_burst(one_worker).total_ms == 120
    assert speed_up(two_workers, one_worker[:2]) == pytest.approx(100 / 55)


def test_the_formula_counts_the_frames_that_were_sent() -> None:
    """The requests of the original are those that its difference detector and its small network left over."""
    sent = burst(20, 2, 50.0)
    vehicle = {"outcome": Outcome.REUSED.value, "taken_ms": 3.0, "gated_ms": 0.5, "total_ms": 3.5}
    made = split_burst(pd.concat([sent, pd.DataFrame([vehicle] * 80)], ignore_index=True), 2)
    assert (made.frames, made.sent, made.predicted_queue_ms) == (100, 20, 9 * 50)
    assert made.total_ms == pytest.approx(sent["total_ms"].max())
    assert made.vehicle_ms == pytest.approx(20 * 1.0 + 80 * 0.5)
    assert made.rate_hz == pytest.approx(100 / made.total_ms * 1e3)


def test_a_burst_that_no_worker_answered_waits_at_the_vehicle() -> None:
    """Every frame can be answered by the local model: nothing was sent, and no worker was busy."""
    local = {"outcome": Outcome.ANSWERED_LOCALLY.value, "taken_ms": 9.0, "inferred_locally_ms": 3.0, "total_ms": 12.0}
    made = split_burst(pd.DataFrame([local] * 4), 2)
    assert (made.client_queue_ms, made.network_ms, made.server_queue_ms, made.compute_ms) == (12.0, 0.0, 0.0, 0.0)
    assert (made.sent, made.busy_ms, made.predicted_queue_ms) == (0, 0.0, 0.0)
