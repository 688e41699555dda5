"""Lines of a run's summary."""

from dataclasses import replace

import pytest

from edge.ledger import AnsweredBy, RunCounts
from edge.run import NOTHING_ANSWERED, answered_by_lines, exit_code, retry_lines, unused_lines
from shared.runlog.latency_log import Outcome
from tests.edge.samples import CARD

COUNTS = RunCounts(3, 0, {}, {}, None)


def test_retries_are_summarised_with_their_success() -> None:
    """Many needless retries mean slow workers, not dead ones."""
    assert list(retry_lines(COUNTS)) == []
    (line,) = retry_lines(replace(COUNTS, retried=5, retry_won=3, ignored_answers={"duplicate": 2}))
    assert line == (
        "5 frames were sent again because no answer came: the second attempt answered 3; 2 duplicate answers were ignored"
    )


def test_an_address_without_frames_is_a_warning() -> None:
    """A wrong port among several addresses would go unnoticed, because the other workers do the work."""
    assert list(unused_lines({})) == []
    assert list(unused_lines({"cloud-2:8001": "it cannot be reached"})) == [
        "WARNING: cloud-2:8001 got no frame: it cannot be reached"
    ]


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.has_result])
def test_a_run_with_one_result_of_any_origin_succeeded(outcome: Outcome) -> None:
    """A fixed camera at night may need no worker for hours."""
    assert exit_code([{"outcome": "dropped"}, {"outcome": outcome}], []) == 0


def test_a_run_without_a_result_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A script must notice that nothing was answered in time."""
    assert (
        exit_code([{"outcome": "dropped", "reason": "window"}, {"outcome": "expired", "reason": ""}], [])
        == NOTHING_ANSWERED
    )
    assert "none of the 2 frames got a result in time" in capsys.readouterr().err


def test_a_run_without_a_frame_has_the_same_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A topic can have no messages."""
    assert exit_code([], []) == NOTHING_ANSWERED
    assert "the run has no frames" in capsys.readouterr().err


def test_each_worker_has_a_line() -> None:
    """There is no warning if all workers used the requested model."""
    answered_by = {AnsweredBy(name, "1", "openvino bf16", CARD.sha256): 7 for name in ("b", "a")}
    assert list(answered_by_lines(replace(COUNTS, answered_by=answered_by), CARD)) == [
        "7 frames answered by a (tiny 1, openvino bf16, 000000000000)",
        "7 frames answered by b (tiny 1, openvino bf16, 000000000000)",
    ]


def test_different_models_with_one_name_are_a_warning() -> None:
    """Results over two versions describe neither."""
    answered_by = {AnsweredBy("a", "1", "tensorflow fp32", CARD.sha256): 1, AnsweredBy("b", "2", "", "f" * 64): 1}
    *_, unknown, warning = answered_by_lines(replace(COUNTS, answered_by=answered_by), CARD)
    assert unknown == "1 frames answered by b (tiny 2, unknown engine, ffffffffffff)"
    assert warning.startswith("WARNING: 2 different models named tiny answered")


def test_versions_of_one_file_are_one_model() -> None:
    """A file that was published again under a new version gives the same results; other files of one version do not."""
    again = {AnsweredBy("a", version, "tensorflow fp32", CARD.sha256): 1 for version in ("1", "2")}
    assert not [line for line in answered_by_lines(replace(COUNTS, answered_by=again), CARD) if "WARNING" in line]
    files = {AnsweredBy("a", "1", "tensorflow fp32", sha256): 1 for sha256 in (CARD.sha256, "f" * 64)}
    assert "2 different models named tiny" in [*answered_by_lines(replace(COUNTS, answered_by=files), CARD)][-1]
    unknown = {AnsweredBy("a", version, "tensorflow fp32"): 1 for version in ("1", "2")}
    assert "2 different models named tiny" in [*answered_by_lines(replace(COUNTS, answered_by=unknown), CARD)][-1]


def test_another_model_than_the_announced_one_is_a_warning() -> None:
    """The worker replaced its model between the announcement and the first frame."""
    answered_by = {AnsweredBy("a", "2", "tensorflow fp32", "f" * 64): 1}
    *_, warning = answered_by_lines(replace(COUNTS, answered_by=answered_by), CARD)
    assert warning == "WARNING: tiny was announced as version 1 (000000000000), but another one answered"
