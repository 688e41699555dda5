"""Log lines about frames."""

from collections.abc import Callable
from typing import Any

from edge.ledger import ReplyOrigin, VehicleFrameLog
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome

Lines = Callable[[], list[dict[str, Any]]]


def _frame(sequence: int) -> FrameId:
    return FrameId("car", "left", "s1", sequence)


def test_frames_that_end_in_the_same_way_are_one_line(log_lines: Lines) -> None:
    """A worker could fill a disk by sending a new reason with every frame; the vehicle has few reasons."""
    log = VehicleFrameLog()
    for sequence in range(100):
        log.ended(_frame(sequence), Outcome.REJECTED, f"no model {sequence}", "w")
        log.ended(_frame(sequence), Outcome.DROPPED, "window", "")
        log.ended(_frame(sequence), Outcome.DROPPED, f"too_large: {sequence} bytes", "")
        log.ended(_frame(sequence), Outcome.ANSWERED, "", "w")
        log.ended(_frame(sequence), Outcome.REUSED, "", "")
        log.ended(_frame(sequence), Outcome.ANSWERED_LOCALLY, "", "")
    rejected, window, too_large = log_lines()
    assert rejected["event"] == "frame rejected"
    assert (rejected["worker"], rejected["reason"], rejected["frame_id"]) == ("w", "no model 0", "car/left/s1/0")
    assert (window["event"], window["reason"], "worker" in window) == ("frame dropped", "window", False)
    assert too_large["reason"] == "too_large: 0 bytes"


def test_a_changed_model_is_logged(log_lines: Lines) -> None:
    """Later results are from another model than earlier ones."""
    log = VehicleFrameLog()
    log.answered(_frame(0), "tiny", ReplyOrigin("w", "1", "tensorflow", "0" * 64))
    log.answered(_frame(1), "tiny", ReplyOrigin("v", "1", "openvino", "0" * 64))
    assert not log_lines()
    log.answered(_frame(2), "tiny", ReplyOrigin("v", "2", "openvino", "f" * 64))
    (line,) = log_lines()
    assert line["event"] == "model changed"
    assert (line["version_before"], line["version"], line["worker"]) == ("1", "2", "v")
    assert (line["sha256_before"], line["sha256"]) == ("0" * 12, "f" * 12)


def test_a_retry_is_logged_with_its_worker_and_the_silence_before_it(log_lines: Lines) -> None:
    """An operator sees which worker takes over."""
    VehicleFrameLog().sent_again(_frame(3), "v", 1_500_000_000)
    (line,) = log_lines()
    assert (line["event"], line["worker"], line["silent_ms"]) == ("frame sent again", "v", 1500)
