from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloud.engines.openvino.dilation import use_dilated_convolutions
from cloud.engines.openvino.runtime import ops, ov

CHANNELS, ROWS, COLUMNS = 6, 20, 26
GROUPED = np.random.default_rng(3).standard_normal((CHANNELS, 1, 1, 5, 5)).astype(np.float32)
PLAIN = np.random.default_rng(4).standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32)

Values = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def _split(features: Any, rows: int, columns: int) -> Any:
    """SpaceToBatch with block size 2 and zero padding at the bottom and right."""
    return ops.space_to_batch(features, *(np.array(each) for each in ([1, 1, 2, 2], [0] * 4, [0, 0, rows, columns])))


def _join(features: Any, rows: int, columns: int) -> Any:
    return ops.batch_to_space(features, *(np.array(each) for each in ([1, 1, 2, 2], [0] * 4, [0, 0, rows, columns])))


def _depthwise(features: Any) -> Any:
    return ops.group_convolution(features, GROUPED, [1, 1], [2, 2], [2, 2], [1, 1])


def _wide(features: Any) -> Any:
    """A dilation that spans more than one phase on the whole map."""
    return ops.convolution(features, PLAIN, [1, 1], [0, 0], [0, 0], [4, 4])


def _gated(features: Any, phases: int) -> Any:
    """Scales each channel by its mean over the whole image, as modelling.architectures.blocks does on phases."""
    means = ops.reduce_mean(features, np.array([2, 3]), keep_dims=True)
    apart = ops.reshape(means, np.array([phases, -1, CHANNELS, 1, 1]), special_zero=False)
    whole = ops.reduce_mean(apart, np.array([0]), keep_dims=False)
    return ops.multiply(features, ops.tile(whole, np.array([phases, 1, 1, 1])))


def _nested(features: Any) -> Any:
    inner = _gated(_depthwise(_split(_depthwise(features), 0, 1)), 16)
    return _join(ops.relu(inner), 0, 1)


def _model(within: Callable[[Any], Any], batch: int = 1, *, join: bool = True) -> Any:
    """A model with `within` between SpaceToBatch and BatchToSpace, for a map of odd size."""
    features = ops.parameter([batch, CHANNELS, ROWS - 2, COLUMNS - 1], np.float32)
    # Without `abs`, OpenVINO ignores the padding of a convolution directly between the two.
    result = ops.abs(within(ops.abs(_split(features, 2, 1))))
    return ov.Model([_join(result, 2, 1) if join else result], [features])


def _output(model: Any) -> Values:
    shape = tuple(model.inputs[0].shape)
    features = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return np.array(ov.compile_model(model, "CPU", config)([features])[0])


def _kinds(model: Any) -> set[str]:
    return {node.get_type_name() for node in model.get_ops()}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "within",
    [
        _depthwise,
        _wide,
        lambda features: ops.convolution(features, PLAIN, [1, 1], [0, 0], [0, 0], [1, 1], auto_pad="same_upper"),
        lambda features: ops.convolution(features, PLAIN, [1, 1], [0, 1], [2, 1], [1, 1]),
        lambda features: ops.add(_depthwise(features), features),
        lambda features: ops.relu(ops.subtract(features, np.full((1, CHANNELS, 1, 1), 0.5, np.float32))),
        lambda features: _gated(_depthwise(features), 4),
        _nested,
    ],
    ids=["depthwise", "wider than a phase", "same padding", "uneven padding", "sum", "bias", "gate", "nested"],
)
def test_phases_become_dilated_convolutions_with_equal_output(within: Callable[[Any], Any], batch: int) -> None:
    """A changed number would change labels."""
    model = _model(within, batch)
    before = _output(model.clone())
    assert use_dilated_convolutions(model)
    assert not {"SpaceToBatch", "BatchToSpace", "Tile"} & _kinds(model)
    np.testing.assert_allclose(_output(model), before, rtol=1e-4, atol=1e-5)


def _mean_per_phase(features: Any) -> Any:
    """Scales each phase by its own mean, which is not the mean of the image."""
    return ops.multiply(features, ops.reduce_mean(features, np.array([2, 3]), keep_dims=True))


def _mean_of_first_phase(features: Any) -> Any:
    """Scales all phases by the mean of the first one, which has the structure of `_gated`."""
    means = ops.reduce_mean(features, np.array([2, 3]), keep_dims=True)
    first = ops.slice(means, *(np.array([each]) for each in (0, 1, 1, 0)))
    return ops.multiply(features, ops.tile(first, np.array([4, 1, 1, 1])))


@pytest.mark.parametrize(
    "within",
    [
        lambda features: ops.max_pool(features, [1, 1], [1, 1], [1, 1], [1, 1], [3, 3]).output(0),
        lambda features: ops.add(features, np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)),
        lambda features: ops.softmax(features, 0),
        _mean_per_phase,
        _mean_of_first_phase,
    ],
    ids=["pooling", "one number per phase", "softmax over phases", "mean per phase", "mean of one phase"],
)
def test_an_unsupported_operation_on_phases_leaves_the_graph_unchanged(within: Callable[[Any], Any]) -> None:
    """Operations that treat the phases differently have no equivalent on the whole map."""
    model = _model(within)
    before, kinds = _output(model.clone()), _kinds(model)
    assert not use_dilated_convolutions(model)
    assert _kinds(model) == kinds
    np.testing.assert_array_equal(_output(model), before)


def test_phases_that_are_the_output_leave_the_graph_unchanged() -> None:
    """A model may return the split map."""
    model = _model(_depthwise, join=False)
    assert not use_dilated_convolutions(model)
    assert "SpaceToBatch" in _kinds(model)


def test_a_model_without_phases_is_unchanged() -> None:
    """The function reports that there was nothing to do."""
    features = ops.parameter([1, CHANNELS, ROWS, COLUMNS], np.float32)
    assert not use_dilated_convolutions(ov.Model([_depthwise(features)], [features]))
