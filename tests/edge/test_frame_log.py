"""Log lines about frames."""

from collections.abc import Callable
from typing import Any

from edge.ledger import VehicleFrameLog
from shared.runlog.latency_log import Outcome
from tests.edge.samples import make_answer, make_record, mark_sent

Lines = Callable[[], list[dict[str, Any]]]


def _end(log: VehicleFrameLog, sequence: int, outcome: Outcome, reason: str, worker: str = "") -> None:
    record = make_record(sequence)
    record.row.outcome, record.row.reason, record.row.worker = outcome, reason, worker
    log.ended(record, None)


def _answer(log: VehicleFrameLog, sequence: int, worker: str, version: str, sha256: str) -> None:
    record = mark_sent(make_record(sequence))
    log.answered(make_answer(record, worker=worker, model_version=version, model_sha256=sha256), "tiny")


def test_frames_that_end_in_the_same_way_are_one_line(log_lines: Lines) -> None:
    """A worker could fill a disk by sending a new reason with every frame; the vehicle has few reasons."""
    log = VehicleFrameLog()
    for sequence in range(100):
        _end(log, sequence, Outcome.REJECTED, f"no model {sequence}", "w")
        _end(log, sequence, Outcome.DROPPED, "window")
        _end(log, sequence, Outcome.DROPPED, f"too_large: {sequence} bytes")
        _end(log, sequence, Outcome.ANSWERED, "", "w")
        _end(log, sequence, Outcome.REUSED, "")
        _end(log, sequence, Outcome.ANSWERED_LOCALLY, "")
    rejected, window, too_large = log_lines()
    assert rejected["event"] == "frame rejected"
    assert (rejected["worker"], rejected["reason"], rejected["frame_id"]) == ("w", "no model 0", "car/left/s1/0")
    assert (window["event"], window["reason"], "worker" in window) == ("frame dropped", "window", False)
    assert too_large["reason"] == "too_large: 0 bytes"


def test_a_changed_model_is_logged(log_lines: Lines) -> None:
    """Later results are from another model than earlier ones."""
    log = VehicleFrameLog()
    _answer(log, 0, "w", "1", "0" * 64)
    _answer(log, 1, "v", "1", "0" * 64)
    assert not log_lines()
    _answer(log, 2, "v", "2", "f" * 64)
    (line,) = log_lines()
    assert line["event"] == "model changed"
    assert (line["version_before"], line["version"], line["worker"]) == ("1", "2", "v")
    assert (line["sha256_before"], line["sha256"]) == ("0" * 12, "f" * 12)


def test_a_retry_is_logged_with_its_worker_and_the_silence_before_it(log_lines: Lines) -> None:
    """An operator sees which worker takes over."""
    VehicleFrameLog().sent_again(make_record(3).id, "v", 1_500_000_000)
    (line,) = log_lines()
    assert (line["event"], line["worker"], line["silent_ms"]) == ("frame sent again", "v", 1500)
