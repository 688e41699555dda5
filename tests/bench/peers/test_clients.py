from dataclasses import replace

import numpy as np
import pytest

from bench.peers.clients import Job, answer_of
from shared.messages.frame import ResultMessage, Status
from shared.messages.results import Classification
from shared.stages import Stage, Stamp
from shared.task import task_named

SCORES = np.array([0.1, 0.6, 0.3], np.float32)


@pytest.mark.parametrize(("scores", "wrong"), [((0.6, 0.3), 0), ((0.6, 0.25), 1)])
def test_the_best_classes_are_compared_with_those_of_the_direct_call(
    job: Job, scores: tuple[float, ...], wrong: int
) -> None:
    """A server that returns other scores, or scores of other classes, must not pass as exact."""
    scored = replace(job, mask=SCORES.view(np.uint8).reshape(3, 4))
    stamps = tuple(
        Stamp(stage.value, "cloud/w/s", at_ns) for stage, at_ns in ((Stage.BATCHED, 5), (Stage.INFERRED, 12))
    )
    message = ResultMessage(
        id=job.frame.id,
        attempt=1,
        status=Status.ANSWERED,
        worker="w",
        task="classification",
        codec="raw",
        data=task_named("classification").encode(Classification((1, 2), scores), "raw"),
        stamps=stamps,
    )
    answer = answer_of(message, scored)
    assert answer.inference_ns == 7
    assert np.count_nonzero(answer.mask.view(np.float32) != scored.mask.view(np.float32)) == wrong
