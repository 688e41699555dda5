"""Log lines about frames."""

import logging
from typing import Any

import pytest

from cloud.run import CountSummary
from cloud.serving.replies import WorkerFrameLog
from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.messages.topics import FrameId
from shared.recent_frames import RecentFrames
from tests.support.cloud_requests import make_request
from tests.support.tiny_model import frame


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    """Returns the fields of the lines so far."""
    caplog.set_level(logging.INFO, "skylane.cloud")
    return lambda: [record.msg for record in caplog.records]


def _request(sequence: int) -> Request:
    return make_request(message=frame(sequence))


def _answer(sequence: int, status: Status, session: str = "s1") -> ResultMessage:
    return ResultMessage(FrameId("car", "left", session, sequence), 0, status, worker="w", reason="too many")


def test_a_vehicle_joins_with_the_first_frame_of_each_session(logged: Any) -> None:
    """A restart of a vehicle is logged, a frame is not."""
    log = WorkerFrameLog()
    for sequence in range(5):
        log.replied(_request(sequence), _answer(sequence, Status.ANSWERED))
    log.replied(_request(0), _answer(0, Status.ANSWERED, session="s2"))
    assert [(line["event"], line["vehicle"], line["session"]) for line in logged()] == [
        ("vehicle joined", "car", "s1"),
        ("vehicle joined", "car", "s2"),
    ]


def test_refusals_are_logged_with_a_rate_limit(logged: Any) -> None:
    """A vehicle that floods the worker must not flood its log."""
    log = WorkerFrameLog()
    for sequence in range(100):
        log.replied(_request(sequence), _answer(sequence, Status.OVERLOADED))
    log.replied(_request(100), _answer(100, Status.REJECTED))
    log.unreadable(_request(101), "no message")
    _, overloaded, rejected, unreadable = logged()
    assert overloaded == {
        "event": "frame overloaded",
        "vehicle": "car",
        "camera": "left",
        "frame_id": "car/left/s1/0",
        "model": "tiny",
        "reason": "too many",
    }
    assert (rejected["event"], unreadable["event"]) == ("frame rejected", "frame unreadable")


def test_the_summary_has_the_growth_of_the_counts(logged: Any) -> None:
    """An idle worker logs no summary; one that answers, the times of the last minute."""
    summary, recent = CountSummary(period_s=0.0), RecentFrames()
    summary.update({"answered": 3}, recent)
    summary.update({"answered": 3}, recent)
    for _ in range(20):
        recent.add("answered", {"queue": 1_000_000, "inference": 20_000_000})
    summary.update({"answered": 44, "rejected": 1}, recent)
    CountSummary().update({"answered": 5}, recent)  # Its minute has not passed.
    shown = ("answered", "rejected", "queue_p50_ms", "inference_p95_ms")
    assert [{key: line.get(key) for key in shown} for line in logged()] == [
        {"answered": 3, "rejected": None, "queue_p50_ms": None, "inference_p95_ms": None},
        {"answered": 41, "rejected": 1, "queue_p50_ms": 1.0, "inference_p95_ms": 20.0},
    ]
