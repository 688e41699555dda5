from pathlib import Path

import pytest

from bench.load.synthetic_run import Plan, write_run
from bench.resilience.failover import Figures
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import read_manifest, write_manifest
from tests.support import run_damage


def test_figures_are_of_the_frames_and_their_sum_is_what_was_read(tmp_path: Path) -> None:
    """The bench exists to find what is unaccounted for: it has to find it where it is."""
    folder = write_run(tmp_path / "vehicle-1", Plan(frames=40, unanswered=0.2))
    write_manifest(
        folder,
        read_manifest(folder) | {"retries": {"retried": 3, "won": 1}, "ignored_answers": {"duplicate": 2}},
    )
    line = run_damage.line_of(folder, "answered")
    row = run_damage.rows(folder)[line - 2]
    run_damage.change(folder, line, attempts="2", retry_wait_ms="0.010000")
    sent_ns, decoded_ns = int(row["t_sent_ns"]), int(row["t_mask_decoded_ns"])
    figures = Figures()
    figures.add(folder, fault_ns=sent_ns - 5_000)  # After the first attempt left, which is so much later to be told of.
    told = figures.told()
    assert told["read"] == sum(told["outcomes"].values()) == 40
    assert sum(told["reasons"].values()) == 40 - told["outcomes"][Outcome.ANSWERED]
    assert (told["unaccounted"], told["accepted_twice"]) == (0, 0)
    assert told["broken_promises"] == 1  # The journal knows of no second attempt.
    assert (told["retried"], told["retry_won"], told["duplicates_removed"]) == (3, 1, 2)
    assert told["recovery_ms"]["median"] == pytest.approx((decoded_ns - sent_ns + 5_000) / 1e6)
    assert told["retry_wait_ms"]["median"] == pytest.approx(0.01)
    text = run_damage.lines(folder)
    run_damage.write(folder, [text[0], text[line - 1], *text[2:]])
    again = Figures()
    again.add(folder, fault_ns=0)
    assert (again.accounts.unaccounted, again.accounts.accepted_twice) == (1, 1)
