"""What the summary and the manifest report about frames that were not sent."""

from collections.abc import Iterator

import numpy as np
import pytest

from edge.ledger import RunCounts
from edge.reuse.local_model import LocalAnswers, LocalModel
from edge.reuse.opening import Reuse
from shared.inference.engine import InferenceError
from shared.messages.frame import RequestOptions
from shared.runlog.latency_log import Outcome
from tests.edge.samples import make_record
from tests.support import tiny_model
from tests.support.tiny_model import HEIGHT, WIDTH, Engine

COUNTS = RunCounts(9, 0, {Outcome.ANSWERED_LOCALLY: 4, Outcome.ANSWERED: 5}, {}, None)
IMAGE = np.zeros((HEIGHT, WIDTH, 3), np.uint8)


@pytest.fixture
def local() -> Iterator[LocalModel]:
    """Starts a local model that fails for its second image."""
    calls = iter(range(100))

    def act() -> None:
        if next(calls) == 1:
            raise InferenceError("the model failed")

    started = LocalModel(lambda: tiny_model.model(engine=Engine(act)), 60.0)
    yield started
    started.close()


def reuse_with(local: LocalModel) -> Reuse:
    """Returns the parts of a run with this model as a fallback."""
    answers = LocalAnswers(local, tiny_model.CARD, None, RequestOptions())
    return Reuse(None, answers, {"local": {"name": "tiny"}})


def test_failures_are_counted_and_warned_about(local: LocalModel) -> None:
    """Nothing about the model is silent."""
    reuse = reuse_with(local)
    for _ in range(3):
        local.infer(IMAGE)
    lines = list(reuse.lines(COUNTS, is_open_loop=True))
    assert lines[0].startswith("4 frames answered by the vehicle (tiny 1, tensorflow fp32, ")
    assert lines[1:] == ["WARNING: local model tiny failed (1 raised): those frames went to the workers"]
    record = reuse.record()
    assert record["local"]["failures"] == {"raised": 1}
    assert record["local"]["median_ms"] > 0


def test_a_model_slower_than_the_camera_is_warned_about(local: LocalModel) -> None:
    """A closed loop has no rate that a model could be too slow for."""
    reuse = reuse_with(local)
    assert reuse.local is not None
    local.infer(IMAGE)
    for sequence in (0, 3):
        reuse.local.pace.add(make_record(sequence, due_ns=sequence * 10))
    _, warning = reuse.lines(COUNTS, is_open_loop=True)
    assert "ms for a frame, but a frame was due every 0.0 ms" in warning
    assert len(list(reuse.lines(COUNTS, is_open_loop=False))) == 1
