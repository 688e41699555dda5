"""Replaces space-to-batch dilation by dilated convolutions, which OpenVINO runs faster.

TensorFlow writes a dilated convolution as SpaceToBatch, a plain convolution and BatchToSpace; the networks of
`modelling.architectures` nest these once around a whole stage. SpaceToBatch splits a map into interleaved smaller maps, its
phases, stacked along the batch. OpenVINO has no fast kernel for that (21 of 98 ms of road-small).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.engines.openvino.runtime import ops

Block = tuple[int, int]  # The number of phases per side of a map: rows, columns.
_Array = npt.NDArray[Any]

_UNSPLIT = (1, 1)
_MAP_RANK = 4  # N×C×H×W
# Elementwise operations are the same on phases and on the whole map.
_UNARY = {
    *("Abs", "Ceiling", "Clamp", "Convert", "Elu", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish", "Mish", "Negative"),
    *("Relu", "Sigmoid", "SoftPlus", "Swish", "Tanh"),
}
_BINARY = {"Add", "Divide", "Maximum", "Minimum", "Multiply", "Subtract"}
_CONVOLUTIONS = {"Convolution": ops.convolution, "GroupConvolution": ops.group_convolution}


class _UnsupportedGraphError(Exception):
    """The graph contains an operation that this pass does not know, so it stays unchanged."""


@dataclass(slots=True)
class _RewritePlan:
    """The changes to the operations between the first SpaceToBatch and the last BatchToSpace."""

    blocks: dict[tuple[int, int], Block] = field(default_factory=dict)  # The block of each output that is split.
    within_pooling: set[int] = field(default_factory=set)  # Operations between the two of a `pooled` entry.
    padded: list[tuple[Any, Block]] = field(default_factory=list)  # SpaceToBatch nodes and the block of their input.
    dilated: list[tuple[Any, Block]] = field(default_factory=list)
    pooled: list[tuple[Any, Any]] = field(default_factory=list)  # The mean per phase, and the tiled mean of all phases.
    cropped: list[tuple[Any, Block]] = field(default_factory=list)  # BatchToSpace nodes and the block of their output.


def use_dilated_convolutions(model: Any) -> bool:
    """Rewrites an ov.Model in place; returns whether there was anything to rewrite.

    The model has static shapes and folded constants. A convolution on phases becomes one on the zero-padded whole map,
    dilated by the number of phases, with identical results. A graph with an unknown operation on phases stays unchanged.
    """
    try:
        plan = _plan_for(model)
    except _UnsupportedGraphError:
        return False
    if not plan.cropped:
        return False
    for node, block in plan.dilated:
        _dilate(node, block)
    for mean, tiled in plan.pooled:
        tiled.output(0).replace(mean.output(0))
    for node, block in plan.padded:
        begin, end = _margins(node, block)
        source = node.input_value(0)
        zero = ops.constant(np.zeros((), source.get_element_type().to_dtype()))
        padded = ops.pad(source, begin, end, "constant", zero).output(0) if (begin | end).any() else source
        node.output(0).replace(padded)
    for node, block in plan.cropped:
        begin, end = _margins(node, block)
        node.output(0).replace(_crop(node.input_value(0), begin, end) if (begin | end).any() else node.input_value(0))
    model.validate_nodes_and_infer_types()
    return True


def constant_of(output: Any) -> _Array | None:
    """Returns the values of a constant output; None for any other output."""
    node = output.get_node()
    return np.asarray(node.get_data()) if node.get_type_name() == "Constant" else None


def _key(output: Any) -> tuple[int, int]:
    """Identifies an output; the Python wrappers of one node are not equal."""
    return output.get_node().get_instance_id(), output.get_index()


def _plan_for(model: Any) -> _RewritePlan:
    plan = _RewritePlan()
    for node in model.get_ordered_ops():
        if node.get_instance_id() in plan.within_pooling:
            continue
        blocks = [plan.blocks.get(_key(source)) for source in node.input_values()]
        block = next((each for each in blocks if each), _UNSPLIT)
        if node.get_type_name() == "SpaceToBatch":
            rows, columns = _block_of(node)
            plan.padded.append((node, block))
            plan.blocks[_key(node.output(0))] = (block[0] * rows, block[1] * columns)
        elif block != _UNSPLIT:
            _plan_operation(plan, node, blocks, block)
    return plan


def _plan_operation(plan: _RewritePlan, node: Any, blocks: list[Block | None], block: Block) -> None:
    """Adds the change to an operation on split maps."""
    kind, last = node.get_type_name(), node
    if kind == "BatchToSpace":
        block = _joined(node, block)
        plan.cropped.append((node, block))
    elif kind == "ReduceMean":
        path = _pooling(node, block[0] * block[1])
        last = path[-1]
        plan.within_pooling.update(each.get_instance_id() for each in path)
        plan.pooled.append((node, last))
    elif kind in _CONVOLUTIONS:
        if blocks[1] or tuple(node.get_attributes()["strides"]) != _UNSPLIT:
            raise _UnsupportedGraphError
        plan.dilated.append((node, block))
    elif kind in _BINARY:
        _check_broadcast(node, blocks, block)
    elif kind not in _UNARY:
        raise _UnsupportedGraphError
    if block != _UNSPLIT:
        plan.blocks[_key(last.output(0))] = block


def _constant(output: Any) -> _Array:
    values = constant_of(output)
    if values is None:
        raise _UnsupportedGraphError
    return values


def _block_of(node: Any) -> Block:
    """Returns the block of SpaceToBatch or BatchToSpace on N×C×H×W."""
    sides = [int(side) for side in _constant(node.input_value(1))]
    if len(sides) != _MAP_RANK or sides[:2] != [1, 1]:
        raise _UnsupportedGraphError
    _margins(node, _UNSPLIT)  # Raises if the margins are not constant.
    return sides[2], sides[3]


def _joined(node: Any, block: Block) -> Block:
    rows, columns = _block_of(node)
    if block[0] % rows or block[1] % columns:
        raise _UnsupportedGraphError
    return block[0] // rows, block[1] // columns


def _margins(node: Any, block: Block) -> tuple[_Array, _Array]:
    """Returns the padding of SpaceToBatch or the crop of BatchToSpace by axis, in pixels of the whole map."""
    sides = np.array([1, 1, *block], np.int64)
    begin, end = (_constant(node.input_value(place)).astype(np.int64) for place in (2, 3))
    return begin * sides, end * sides


def _check_broadcast(node: Any, blocks: list[Block | None], block: Block) -> None:
    """Checks that both inputs have the same block, or that one is a scalar or one number per channel."""
    for source, each in zip(node.input_values(), blocks, strict=True):
        if each is None:
            shape = _constant(source).shape
            padded = (1,) * (_MAP_RANK - len(shape)) + shape
            if padded[0] != 1 or padded[2:] != _UNSPLIT:
                raise _UnsupportedGraphError
        elif each != block:
            raise _UnsupportedGraphError


def _pooling(mean: Any, phases: int) -> list[Any]:
    """Returns the operations that turn the means per phase, N·phases×C×1×1, into the mean of all phases, tiled.

    The operations may move, average or repeat numbers in any way. This runs them on random numbers and compares the
    result; the operations are linear, so they do the same with all other numbers.
    """
    shape = tuple(mean.get_output_shape(0))
    axes = sorted(int(axis) % _MAP_RANK for axis in np.atleast_1d(_constant(mean.input_value(1))))
    if len(shape) != _MAP_RANK or axes != [2, 3] or shape[0] % phases:
        raise _UnsupportedGraphError
    means = np.random.default_rng(0).standard_normal(shape)
    values, node, path = means, mean, []
    while node.get_type_name() != "Tile":
        users = list(node.output(0).get_target_inputs())
        if len(users) != 1 or (step := _STEPS.get(users[0].get_node().get_type_name())) is None:
            raise _UnsupportedGraphError
        node = users[0].get_node()
        values = step(node, values)
        path.append(node)
    whole = means.reshape(phases, -1, *shape[1:]).mean(axis=0)
    expected = np.tile(whole, (phases, 1, 1, 1))
    if values.shape != expected.shape or not np.allclose(values, expected):
        raise _UnsupportedGraphError
    return path


def _reshaped(node: Any, values: _Array) -> _Array:
    sides = [int(side) for side in _constant(node.input_value(1))]
    if node.get_attributes()["special_zero"]:
        sides = [values.shape[place] if side == 0 else side for place, side in enumerate(sides)]
    return values.reshape(sides)


def _averaged(node: Any, values: _Array) -> _Array:
    axes = tuple(int(axis) for axis in np.atleast_1d(_constant(node.input_value(1))))
    return np.asarray(values.mean(axis=axes, keepdims=bool(node.get_attributes()["keep_dims"])))


_STEPS: dict[str, Callable[[Any, _Array], _Array]] = {
    "ReduceMean": _averaged,
    "Reshape": _reshaped,
    "Tile": lambda node, values: np.tile(values, _constant(node.input_value(1))),
    "Transpose": lambda node, values: values.transpose(_constant(node.input_value(1))),
}


def _dilate(node: Any, block: Block) -> None:
    attributes, weights = node.get_attributes(), node.input_value(1)
    dilations = np.array(attributes["dilations"])
    spread = (
        np.array(list(weights.get_shape())[-2:]) - 1
    ) * dilations  # Distance of the kernel's first and last pixel.
    match attributes["auto_pad"].lower():
        case "same_upper":
            begin, end = spread // 2, spread - spread // 2
        case "same_lower":
            begin, end = spread - spread // 2, spread // 2
        case "valid":
            begin = end = np.zeros(2, int)
        case _:
            begin, end = np.array(attributes["pads_begin"]), np.array(attributes["pads_end"])
    sides = np.array(block)
    # The input may still have the size of a phase, which can be too small for the dilated kernel.
    whole = ops.parameter([-1] * _MAP_RANK, node.get_element_type())
    dilated = _CONVOLUTIONS[node.get_type_name()](
        whole, weights, [1, 1], *((each * sides).tolist() for each in (begin, end, dilations))
    )
    dilated.input(0).replace_source_output(node.input_value(0))
    dilated.set_friendly_name(node.get_friendly_name())
    node.output(0).replace(dilated.output(0))


def _crop(source: Any, begin: _Array, end: _Array) -> Any:
    """Crops the edges of a map; stops count from the end, because the shape is not known yet."""
    axes = [int(axis) for axis in np.flatnonzero(begin | end)]
    stops = [-int(end[axis]) or np.iinfo(np.int64).max for axis in axes]
    starts = [int(begin[axis]) for axis in axes]
    return ops.slice(source, *(np.array(each, np.int64) for each in (starts, stops, [1] * len(axes), axes))).output(0)
