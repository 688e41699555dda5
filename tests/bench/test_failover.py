from pathlib import Path

import pytest

from bench.failover import FailoverStatistics
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import read_manifest, write_manifest
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run


def test_statistics_count_every_frame_read(tmp_path: Path) -> None:
    """A retried frame, a duplicate reply and a missing row must all appear in the result."""
    folder = write_run(tmp_path / "vehicle-1", SyntheticRunPlan(frames=40, unanswered=0.2))
    write_manifest(
        folder,
        read_manifest(folder) | {"retries": {"retried": 3, "won": 1}, "ignored_answers": {"duplicate": 2}},
    )
    line = run_damage.line_of(folder, "answered")
    row = run_damage.rows(folder)[line - 2]
    run_damage.change(folder, line, attempts="2", retry_wait_ms="0.010000")
    sent_ns, decoded_ns = int(row["t_sent_ns"]), int(row["t_mask_decoded_ns"])
    statistics = FailoverStatistics()
    statistics.add(folder, fault_ns=sent_ns - 5_000)  # After the first attempt, which was 10 µs earlier.
    record = statistics.record()
    assert record["read"] == sum(record["outcomes"].values()) == 40
    assert sum(record["reasons"].values()) == 40 - record["outcomes"][Outcome.ANSWERED]
    assert (record["unaccounted"], record["accepted_twice"]) == (0, 0)
    assert record["broken_promises"] == 1  # The journal contains no second attempt.
    assert (record["retried"], record["retry_won"], record["duplicates_removed"]) == (3, 1, 2)
    assert record["recovery_ms"]["median"] == pytest.approx((decoded_ns - sent_ns + 5_000) / 1e6)
    assert record["retry_wait_ms"]["median"] == pytest.approx(0.01)
    text = run_damage.lines(folder)
    run_damage.write(folder, [text[0], text[line - 1], *text[2:]])
    damaged = FailoverStatistics()
    damaged.add(folder, fault_ns=0)
    assert (damaged.accounts.unaccounted, damaged.accounts.accepted_twice) == (1, 1)
