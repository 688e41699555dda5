from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloud.engines.openvino.library import ops, ov
from cloud.engines.openvino.transposes import sink_transposes

Values = np.ndarray[tuple[int, ...], np.dtype[Any]]
TO_LAST, TO_FIRST = np.array([0, 2, 3, 1]), np.array([0, 3, 1, 2])


def _resized(features: Any) -> Any:
    return ops.interpolate(
        features,
        np.array([12, 20]),
        "linear",
        "sizes",
        coordinate_transformation_mode="half_pixel",
        axes=np.array([1, 2]),
    )


def _cut(features: Any) -> Any:
    """As TensorFlow writes `features[:, :5, 1:8:2]`."""
    bounds = (np.array(each) for each in ([0, 0, 1, 0], [0, 5, 8, 0], [1, 1, 2, 1]))
    return ops.strided_slice(features, *bounds, [1, 1, 0, 1], [1, 0, 0, 1])


def _best(features: Any) -> Any:
    return ops.squeeze(ops.topk(features, np.array(1), 3, "max", "none", "i32").output(1), np.array([3]))


def _model(after: Callable[[Any], Any]) -> Any:
    given = ops.parameter([2, 4, 6, 10], np.float32)
    return ov.Model([after(ops.transpose(given, TO_LAST))], [given])


def _answer(model: Any) -> Values:
    # Few values: many scores are equal, and the lowest class must win before and after.
    given = np.random.default_rng(2).integers(0, 3, (2, 4, 6, 10)).astype(np.float32)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return np.array(ov.compile_model(model, "CPU", config)([given])[0])


@pytest.mark.parametrize(
    ("after", "left"),
    [
        (lambda features: ops.transpose(_resized(features), TO_FIRST), 0),
        (lambda features: ops.transpose(_cut(features), TO_FIRST), 0),
        (lambda features: ops.transpose(features, TO_FIRST), 0),
        (_best, 0),
        (lambda features: _best(_resized(features)), 0),
        (lambda features: _resized(_cut(features)), 1),
        (lambda features: ops.transpose(features, np.array([0, 2, 1, 3])), 1),
    ],
    ids=["resize", "cut", "back", "arg max", "resize and arg max", "an answer with channels last", "two in a row"],
)
def test_transposes_meet_and_vanish_with_the_same_answer(after: Callable[[Any], Any], left: int) -> None:
    """Each is a copy of a whole map; what is computed must stay the same, ties of arg max too."""
    model = _model(after)
    before = _answer(model.clone())
    assert sink_transposes(model)
    assert sum(node.get_type_name() == "Transpose" for node in model.get_ordered_ops()) == left
    np.testing.assert_array_equal(_answer(model), before)


@pytest.mark.parametrize(
    "after",
    [
        lambda features: ops.squeeze(ops.slice(features, *(np.array([each]) for each in (0, 1, 1, 2))), np.array([2])),
        ops.relu,
    ],
    ids=["a squeeze behind a slice", "nothing to move"],
)
def test_what_cannot_be_moved_is_left_as_it_is(after: Callable[[Any], Any]) -> None:
    """Where the rewriting does not know an operation, what was there still runs."""
    model = _model(after)
    before = _answer(model.clone())
    assert sink_transposes(model) == 0
    np.testing.assert_array_equal(_answer(model), before)
