from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloud.engines.openvino.graph import sink_transposes
from cloud.engines.openvino.runtime import ops, ov

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


def _sliced(features: Any) -> Any:
    """`features[:, :5, 1:8:2]` as TensorFlow writes it."""
    limits = (np.array(each) for each in ([0, 0, 1, 0], [0, 5, 8, 0], [1, 1, 2, 1]))
    return ops.strided_slice(features, *limits, [1, 1, 0, 1], [1, 0, 0, 1])


def _arg_max(features: Any) -> Any:
    return ops.squeeze(ops.topk(features, np.array(1), 3, "max", "none", "i32").output(1), np.array([3]))


def _model(after: Callable[[Any], Any]) -> Any:
    features = ops.parameter([2, 4, 6, 10], np.float32)
    return ov.Model([after(ops.transpose(features, TO_LAST))], [features])


def _output(model: Any) -> Values:
    # Integers from 0 to 2 give many ties, which arg max must resolve in the same way before and after.
    features = np.random.default_rng(2).integers(0, 3, (2, 4, 6, 10)).astype(np.float32)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return np.array(ov.compile_model(model, "CPU", config)([features])[0])


@pytest.mark.parametrize(
    ("after", "remaining"),
    [
        (lambda features: ops.transpose(_resized(features), TO_FIRST), 0),
        (lambda features: ops.transpose(_sliced(features), TO_FIRST), 0),
        (lambda features: ops.transpose(features, TO_FIRST), 0),
        (_arg_max, 0),
        (lambda features: _arg_max(_resized(features)), 0),
        (lambda features: _resized(_sliced(features)), 1),
        (lambda features: ops.transpose(features, np.array([0, 2, 1, 3])), 1),
    ],
    ids=["resize", "slice", "inverse", "arg max", "resize and arg max", "channels-last output", "two transposes"],
)
def test_transposes_cancel_out_and_the_output_stays_equal(after: Callable[[Any], Any], remaining: int) -> None:
    """Each transpose copies a whole map."""
    model = _model(after)
    before = _output(model.clone())
    assert sink_transposes(model)
    assert sum(node.get_type_name() == "Transpose" for node in model.get_ordered_ops()) == remaining
    np.testing.assert_array_equal(_output(model), before)


@pytest.mark.parametrize(
    "after",
    [
        lambda features: ops.squeeze(ops.slice(features, *(np.array([each]) for each in (0, 1, 1, 2))), np.array([2])),
        ops.relu,
    ],
    ids=["squeeze after slice", "nothing to move"],
)
def test_an_unknown_operation_stops_a_transpose(after: Callable[[Any], Any]) -> None:
    """The graph stays unchanged and runs."""
    model = _model(after)
    before = _output(model.clone())
    assert sink_transposes(model) == 0
    np.testing.assert_array_equal(_output(model), before)
