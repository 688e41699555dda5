import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.messages.frame import RequestOptions
from shared.messages.results import Classification
from shared.tasks.classification import ClassificationTask
from tests.shared.tasks.parts import manifest, message

SCORES = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(0, 1, width=32))


@given(SCORES, st.integers(1, 256))
def test_the_best_classes_come_first(scores: np.ndarray, top_k: int) -> None:
    """Equal scores are sorted by class id."""
    got = ClassificationTask().result(
        {"scores": scores}, message(RequestOptions(top_k=top_k)), manifest("classification")
    )
    assert isinstance(got, Classification)
    ranked = sorted(range(len(scores)), key=lambda class_id: (-scores[class_id], class_id))[:top_k]
    assert got.class_ids == tuple(ranked)
    assert got.scores == tuple(float(scores[class_id]) for class_id in ranked)


@pytest.mark.parametrize(("wanted", "expected"), [(None, 2), (1, 1), (3, 3), (200, 3)])
def test_the_request_or_the_manifest_sets_the_number_of_classes(wanted: int | None, expected: int) -> None:
    """It is limited by the number of classes."""
    scores = np.array([0.2, 0.5, 0.3], np.float32)
    got = ClassificationTask().result(
        {"scores": scores}, message(RequestOptions(top_k=wanted)), manifest("classification", top_k=2)
    )
    assert isinstance(got, Classification)
    assert got.class_ids == (1, 2, 0)[:expected]
