import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cloud.tasks.classification import result
from shared.messages.frame import RequestOptions
from shared.messages.model_card import Task
from shared.messages.results import Classification
from tests.cloud.tasks.parts import manifest, message

SCORES = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(0, 1, width=32))


@given(SCORES, st.integers(1, 256))
def test_the_best_classes_come_first(scores: np.ndarray, top_k: int) -> None:
    """By score, and where two are equal by their number, so that two runs tell the same."""
    got = result({"scores": scores}, message(RequestOptions(top_k=top_k)), manifest(Task.CLASSIFICATION))
    assert isinstance(got, Classification)
    ranked = sorted(range(len(scores)), key=lambda class_id: (-scores[class_id], class_id))[:top_k]
    assert got.class_ids == tuple(ranked)
    assert got.scores == tuple(float(scores[class_id]) for class_id in ranked)


@pytest.mark.parametrize(("wanted", "told"), [(None, 2), (1, 1), (3, 3), (200, 3)])
def test_the_vehicle_says_how_many_else_the_manifest(wanted: int | None, told: int) -> None:
    """And never more than there are."""
    scores = np.array([0.2, 0.5, 0.3], np.float32)
    got = result({"scores": scores}, message(RequestOptions(top_k=wanted)), manifest(Task.CLASSIFICATION, top_k=2))
    assert isinstance(got, Classification)
    assert got.class_ids == (1, 2, 0)[:told]
