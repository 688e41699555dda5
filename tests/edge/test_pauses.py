"""Pauses in the recording times: how long a replay waits for them, and what it says about them."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from edge.config import EdgeConfig
from edge.ledger import Ledger
from edge.pacing import FrameQueue, Pacer
from shared.runlog.latency_log import LogWriter, read_rows
from tests.edge.samples import make_frame
from tests.support.waiting import beside, until

SECOND_NS = 10**9
YEARS_54_NS = 1_700_000_000 * SECOND_NS


def paced(tmp_path: Path, times_ns: Sequence[int], **settings: object) -> tuple[list[int], list[int], dict[str, int]]:
    """Returns the due times after the first, the recorded times in the log, and the notes on shortened pauses."""
    config = EdgeConfig.model_validate({"vehicle": "car", "model": "tiny", "queue": 1000, **settings})
    frames = [make_frame(index, source_ns=time_ns) for index, time_ns in enumerate(times_ns)]
    with LogWriter(tmp_path) as log:
        ledger = Ledger(log, config, "s1")
        queue = FrameQueue(config.queue)
        pacer = Pacer(frames, queue, ledger, config, threading.Event())
        pacer.run()
        for record in queue.drain():
            ledger.drop(record, "stopped")
    rows = sorted(read_rows(tmp_path), key=lambda row: int(row["sequence"]))
    due_ns = [int(row["t_due_ns"]) for row in rows]
    return [each - due_ns[0] for each in due_ns], [int(row["source_ns"]) for row in rows], dict(pacer.shortened)


@pytest.mark.parametrize("jump_ns", [YEARS_54_NS, 2**63, 2**64, 181_000 * SECOND_NS])
def test_a_jump_of_the_clock_is_played_as_one_second(
    tmp_path: Path, jump_ns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A run would wait for 54 years after NTP has set the clock of the recorder."""
    caplog.set_level(logging.INFO)
    times_ns = [0, SECOND_NS, SECOND_NS + jump_ns, 2 * SECOND_NS + jump_ns]
    due_ns, recorded_ns, notes = paced(tmp_path, times_ns, rate=100.0)
    assert recorded_ns == times_ns
    assert due_ns == [0, SECOND_NS // 100, 2 * SECOND_NS // 100, 3 * SECOND_NS // 100]
    (note,) = notes
    assert "before frame 2 of" in note
    assert "--start-offset" in caplog.text
    assert "--closed-loop" in caplog.text


def test_every_jump_is_shortened_and_further_ones_are_counted(tmp_path: Path) -> None:
    """A hostile bag has a jump before every frame; the notes of the run record stay short."""
    due_ns, _, notes = paced(tmp_path, [index * YEARS_54_NS for index in range(9)], rate=100.0)
    assert due_ns == [index * SECOND_NS // 100 for index in range(9)]
    assert [*notes.values()] == [1, 1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    ("pause_s", "rate"),
    [(1700, 100_000.0), (3600, 100_000.0), (86_400, 1e6)],
)
def test_a_pause_that_costs_little_time_is_waited_for(tmp_path: Path, pause_s: float, rate: float) -> None:
    """A time lapse has an hour between frames and is played at a high rate."""
    pause_ns = round(pause_s * 1e9)
    due_ns, _, notes = paced(tmp_path, [0, pause_ns, 2 * pause_ns], rate=rate)
    assert due_ns == [0, round(pause_ns / rate), round(2 * pause_ns / rate)]
    assert notes == {}


def test_a_long_wait_is_logged_before_it_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a run that waits for minutes looks as if it hangs."""
    caplog.set_level(logging.INFO)
    config = EdgeConfig(vehicle="car", model="tiny")
    stop = threading.Event()
    with LogWriter(tmp_path) as log:
        ledger, queue = Ledger(log, config, "s1"), FrameQueue(2)
        frames = [make_frame(0, source_ns=0), make_frame(1, source_ns=100 * SECOND_NS)]
        with beside(Pacer(frames, queue, ledger, config, stop).run):
            until(lambda: "wait_s" in caplog.text)
            stop.set()
        for record in queue.drain():
            ledger.drop(record, "stopped")
    assert "--start-offset" in caplog.text
    assert len(list(read_rows(tmp_path))) == 1


@pytest.mark.parametrize(
    "settings",
    [{"arrivals": "uniform", "arrival_rate_hz": 1000.0}, {"arrivals": "poisson", "arrival_rate_hz": 1000.0, "seed": 1}],
)
def test_other_schedules_ignore_the_recorded_times(tmp_path: Path, settings: dict[str, object]) -> None:
    """The log recommends them."""
    due_ns, _, notes = paced(tmp_path, [0, YEARS_54_NS], **settings)
    assert due_ns[1] < SECOND_NS
    assert notes == {}
