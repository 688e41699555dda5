from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloud.engines.openvino.dilation import use_dilated_convolutions
from cloud.engines.openvino.library import ops, ov

CHANNELS, ROWS, COLUMNS = 6, 20, 26
GROUPED = np.random.default_rng(3).standard_normal((CHANNELS, 1, 1, 5, 5)).astype(np.float32)
PLAIN = np.random.default_rng(4).standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32)

Values = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def _cut(features: Any, rows: int, columns: int) -> Any:
    """SpaceToBatch by two, with zeros added below and to the right."""
    return ops.space_to_batch(features, *(np.array(each) for each in ([1, 1, 2, 2], [0] * 4, [0, 0, rows, columns])))


def _join(features: Any, rows: int, columns: int) -> Any:
    return ops.batch_to_space(features, *(np.array(each) for each in ([1, 1, 2, 2], [0] * 4, [0, 0, rows, columns])))


def _depthwise(features: Any) -> Any:
    return ops.group_convolution(features, GROUPED, [1, 1], [2, 2], [2, 2], [1, 1])


def _wide(features: Any) -> Any:
    """Dilated so far that on the whole map it spans more than a phase."""
    return ops.convolution(features, PLAIN, [1, 1], [0, 0], [0, 0], [4, 4])


def _gated(features: Any, phases: int) -> Any:
    """Scaled by each channel's mean over the whole picture, as modelling.architectures.blocks writes it for phases."""
    means = ops.reduce_mean(features, np.array([2, 3]), keep_dims=True)
    apart = ops.reshape(means, np.array([phases, -1, CHANNELS, 1, 1]), special_zero=False)
    whole = ops.reduce_mean(apart, np.array([0]), keep_dims=False)
    return ops.multiply(features, ops.tile(whole, np.array([phases, 1, 1, 1])))


def _nested(features: Any) -> Any:
    inner = _gated(_depthwise(_cut(_depthwise(features), 0, 1)), 16)
    return _join(ops.relu(inner), 0, 1)


def _model(within: Callable[[Any], Any], batch: int = 1, *, join: bool = True) -> Any:
    """`within` between a cut and a join of a map whose sides are no multiples of two."""
    given = ops.parameter([batch, CHANNELS, ROWS - 2, COLUMNS - 1], np.float32)
    # OpenVINO takes a padded convolution right between the two for one without padding, and answers a smaller map.
    features = ops.abs(within(ops.abs(_cut(given, 2, 1))))
    return ov.Model([_join(features, 2, 1) if join else features], [given])


def _answer(model: Any) -> Values:
    shape = tuple(model.inputs[0].shape)
    given = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return np.array(ov.compile_model(model, "CPU", config)([given])[0])


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
def test_phases_become_dilated_convolutions_with_the_same_answer(within: Callable[[Any], Any], batch: int) -> None:
    """A rewriting that changes a number would change labels, and nobody would know why."""
    model = _model(within, batch)
    before = _answer(model.clone())
    assert use_dilated_convolutions(model)
    assert not {"SpaceToBatch", "BatchToSpace", "Tile"} & _kinds(model)
    np.testing.assert_allclose(_answer(model), before, rtol=1e-4, atol=1e-5)


def _by_picture(features: Any) -> Any:
    """Each phase's own mean, which is no mean of the picture."""
    return ops.multiply(features, ops.reduce_mean(features, np.array([2, 3]), keep_dims=True))


def _first_phase(features: Any) -> Any:
    """The mean of the first phase given to all: it looks like the gate and is another function."""
    means = ops.reduce_mean(features, np.array([2, 3]), keep_dims=True)
    first = ops.slice(means, *(np.array([each]) for each in (0, 1, 1, 0)))
    return ops.multiply(features, ops.tile(first, np.array([4, 1, 1, 1])))


@pytest.mark.parametrize(
    "within",
    [
        lambda features: (
            ops.group_convolution(features, GROUPED, [1, 1], [2, 2], [2, 2], [1, 1], auto_pad="explicit")
            if features is None
            else ops.max_pool(features, [1, 1], [1, 1], [1, 1], [1, 1], [3, 3]).output(0)
        ),
        lambda features: ops.add(features, np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)),
        lambda features: ops.softmax(features, 0),
        _by_picture,
        _first_phase,
    ],
    ids=["pooling", "a number a phase", "softmax over phases", "a mean a phase", "one phase's mean"],
)
def test_what_is_not_the_same_for_every_phase_is_left_as_it_is(within: Callable[[Any], Any]) -> None:
    """Where the rewriting is not surely right it is not made, and what was there still runs."""
    model = _model(within)
    before, kinds = _answer(model.clone()), _kinds(model)
    assert not use_dilated_convolutions(model)
    assert _kinds(model) == kinds
    np.testing.assert_array_equal(_answer(model), before)


def test_a_cut_that_is_never_joined_is_left_as_it_is() -> None:
    """Its phases are what the model answers."""
    model = _model(_depthwise, join=False)
    assert not use_dilated_convolutions(model)
    assert "SpaceToBatch" in _kinds(model)


def test_a_model_without_phases_is_left_as_it_is() -> None:
    """Most have none."""
    given = ops.parameter([1, CHANNELS, ROWS, COLUMNS], np.float32)
    assert not use_dilated_convolutions(ov.Model([_depthwise(given)], [given]))
