"""Dilated convolutions that were written by phases, as one map again: OpenVINO dilates faster than it cuts and joins.

TensorFlow writes a dilation as SpaceToBatch, undilated convolutions, BatchToSpace; `modelling.architectures.blocks` does
so once for a whole stage, nested. OpenVINO has no fast kernel for the cut and its inverse (21 of 98 ms of road-small),
and one for dilated convolutions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.engines.openvino.library import ops

Block = tuple[int, int]  # Rows and columns: a map is cut into so many phases a side.
_Array = npt.NDArray[Any]

_WHOLE = (1, 1)
_MAP_RANK = 4  # N×C×H×W
# What treats every pixel alike, so that it does not matter in which phase the pixel lies.
_OF_ONE = {
    *("Abs", "Ceiling", "Clamp", "Convert", "Elu", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish", "Mish", "Negative"),
    *("Relu", "Sigmoid", "SoftPlus", "Swish", "Tanh"),
}
_OF_TWO = {"Add", "Divide", "Maximum", "Minimum", "Multiply", "Subtract"}
_CONVOLUTIONS = {"Convolution": ops.convolution, "GroupConvolution": ops.group_convolution}


class _NotByPhasesError(Exception):
    """Something in the way that this pass does not know: the graph stays as it is."""


@dataclass(slots=True)
class _Plan:
    """What becomes of the operations between the first cut and the last join."""

    blocks: dict[tuple[int, int], Block] = field(default_factory=dict)  # By output: how its map is cut, where it is.
    within_pooling: set[int] = field(default_factory=set)  # Operations between the two of `pooled`.
    padded: list[tuple[Any, Block]] = field(default_factory=list)  # SpaceToBatch, and how its input is cut already.
    dilated: list[tuple[Any, Block]] = field(default_factory=list)
    pooled: list[tuple[Any, Any]] = field(default_factory=list)  # The mean of each phase, and the mean of all, tiled.
    cropped: list[tuple[Any, Block]] = field(default_factory=list)  # BatchToSpace, and how its output is still cut.


def join_phases(model: Any) -> bool:
    """Rewrite an ov.Model of fixed shapes, its constants folded, in place; whether there was anything to rewrite.

    A convolution within phases becomes one dilated by their number, on the map with the zeros that the cut had added
    to it: what it sees is the same, number for number. Where the region holds anything that this cannot be said of,
    nothing is changed.
    """
    try:
        plan = _planned(model)
    except _NotByPhasesError:
        return False
    if not plan.cropped:
        return False
    for node, block in plan.dilated:
        _dilate(node, block)
    for mean, tiled in plan.pooled:
        tiled.output(0).replace(mean.output(0))
    for node, block in plan.padded:
        begin, end = _margins(node, block)
        given = node.input_value(0)
        zero = ops.constant(np.zeros((), given.get_element_type().to_dtype()))
        node.output(0).replace(ops.pad(given, begin, end, "constant", zero).output(0) if (begin | end).any() else given)
    for node, block in plan.cropped:
        begin, end = _margins(node, block)
        node.output(0).replace(_crop(node.input_value(0), begin, end) if (begin | end).any() else node.input_value(0))
    model.validate_nodes_and_infer_types()
    return True


def constant_of(output: Any) -> _Array | None:
    """The values of an output that is a constant; None of any other."""
    node = output.get_node()
    return np.asarray(node.get_data()) if node.get_type_name() == "Constant" else None


def key_of(output: Any) -> tuple[int, int]:
    """What an output is told by: Python's wrappers of one node differ."""
    return output.get_node().get_instance_id(), output.get_index()


def _planned(model: Any) -> _Plan:
    plan = _Plan()
    for node in model.get_ordered_ops():
        if node.get_instance_id() in plan.within_pooling:
            continue
        blocks = [plan.blocks.get(key_of(source)) for source in node.input_values()]
        block = next((each for each in blocks if each), _WHOLE)
        if node.get_type_name() == "SpaceToBatch":
            rows, columns = _block_of(node)
            plan.padded.append((node, block))
            plan.blocks[key_of(node.output(0))] = (block[0] * rows, block[1] * columns)
        elif block != _WHOLE:
            _follow(plan, node, blocks, block)
    return plan


def _follow(plan: _Plan, node: Any, blocks: list[Block | None], block: Block) -> None:
    """Plan what becomes of an operation on maps that are cut."""
    kind, made = node.get_type_name(), node
    if kind == "BatchToSpace":
        block = _joined(node, block)
        plan.cropped.append((node, block))
    elif kind == "ReduceMean":
        path = _pooling(node, block[0] * block[1])
        made = path[-1]
        plan.within_pooling.update(each.get_instance_id() for each in path)
        plan.pooled.append((node, made))
    elif kind in _CONVOLUTIONS:
        if blocks[1] or tuple(node.get_attributes()["strides"]) != _WHOLE:
            raise _NotByPhasesError
        plan.dilated.append((node, block))
    elif kind in _OF_TWO:
        _check_broadcast(node, blocks, block)
    elif kind not in _OF_ONE:
        raise _NotByPhasesError
    if block != _WHOLE:
        plan.blocks[key_of(made.output(0))] = block


def _known(output: Any) -> _Array:
    values = constant_of(output)
    if values is None:
        raise _NotByPhasesError
    return values


def _block_of(node: Any) -> Block:
    """Of SpaceToBatch or BatchToSpace on N×C×H×W."""
    sides = [int(side) for side in _known(node.input_value(1))]
    if len(sides) != _MAP_RANK or sides[:2] != [1, 1]:
        raise _NotByPhasesError
    _margins(node, _WHOLE)  # That they are known.
    return sides[2], sides[3]


def _joined(node: Any, block: Block) -> Block:
    rows, columns = _block_of(node)
    if block[0] % rows or block[1] % columns:
        raise _NotByPhasesError
    return block[0] // rows, block[1] // columns


def _margins(node: Any, block: Block) -> tuple[_Array, _Array]:
    """What a cut adds or a join takes away before and after each axis, in pixels of the whole map."""
    sides = np.array([1, 1, *block], np.int64)
    return _known(node.input_value(2)).astype(np.int64) * sides, _known(node.input_value(3)).astype(np.int64) * sides


def _check_broadcast(node: Any, blocks: list[Block | None], block: Block) -> None:
    """Check that both inputs are cut alike, or one is a number or a number a channel."""
    for source, each in zip(node.input_values(), blocks, strict=True):
        if each is None:
            shape = _known(source).shape
            padded = (1,) * (_MAP_RANK - len(shape)) + shape
            if padded[0] != 1 or padded[2:] != _WHOLE:
                raise _NotByPhasesError
        elif each != block:
            raise _NotByPhasesError


def _pooling(mean: Any, phases: int) -> list[Any]:
    """The operations from the means of each phase, N·phases×C×1×1, to the mean of all given to each, in order.

    They may be any that move, average or repeat numbers. What they amount to is seen by doing it with numbers that
    are all different: such operations are linear, and do with any numbers what they do with these.
    """
    shape = tuple(mean.get_output_shape(0))
    axes = sorted(int(axis) % _MAP_RANK for axis in np.atleast_1d(_known(mean.input_value(1))))
    if len(shape) != _MAP_RANK or axes != [2, 3] or shape[0] % phases:
        raise _NotByPhasesError
    given = np.random.default_rng(0).standard_normal(shape)
    values, node, path = given, mean, []
    while node.get_type_name() != "Tile":
        users = list(node.output(0).get_target_inputs())
        if len(users) != 1 or (step := _STEPS.get(users[0].get_node().get_type_name())) is None:
            raise _NotByPhasesError
        node = users[0].get_node()
        values = step(node, values)
        path.append(node)
    whole = given.reshape(phases, -1, *shape[1:]).mean(axis=0)
    wanted = np.tile(whole, (phases, 1, 1, 1))
    if values.shape != wanted.shape or not np.allclose(values, wanted):
        raise _NotByPhasesError
    return path


def _reshaped(node: Any, values: _Array) -> _Array:
    sides = [int(side) for side in _known(node.input_value(1))]
    if node.get_attributes()["special_zero"]:
        sides = [values.shape[place] if side == 0 else side for place, side in enumerate(sides)]
    return values.reshape(sides)


def _averaged(node: Any, values: _Array) -> _Array:
    axes = tuple(int(axis) for axis in np.atleast_1d(_known(node.input_value(1))))
    return np.asarray(values.mean(axis=axes, keepdims=bool(node.get_attributes()["keep_dims"])))


_STEPS: dict[str, Callable[[Any, _Array], _Array]] = {
    "ReduceMean": _averaged,
    "Reshape": _reshaped,
    "Tile": lambda node, values: np.tile(values, _known(node.input_value(1))),
    "Transpose": lambda node, values: values.transpose(_known(node.input_value(1))),
}


def _dilate(node: Any, block: Block) -> None:
    attributes, weights = node.get_attributes(), node.input_value(1)
    dilations = np.array(attributes["dilations"])
    spread = (np.array(list(weights.get_shape())[-2:]) - 1) * dilations  # From the kernel's first to its last pixel.
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
    # The map before it may still have the size of a phase, in which the dilated kernel need not fit.
    whole = ops.parameter([-1] * _MAP_RANK, node.get_element_type())
    dilated = _CONVOLUTIONS[node.get_type_name()](
        whole, weights, [1, 1], *((each * sides).tolist() for each in (begin, end, dilations))
    )
    dilated.input(0).replace_source_output(node.input_value(0))
    dilated.set_friendly_name(node.get_friendly_name())
    node.output(0).replace(dilated.output(0))


def _crop(given: Any, begin: _Array, end: _Array) -> Any:
    """`given` without so many rows and columns at its edges; the shape is not yet known, hence counted from the end."""
    axes = [int(axis) for axis in np.flatnonzero(begin | end)]
    stops = [-int(end[axis]) or np.iinfo(np.int64).max for axis in axes]
    starts = [int(begin[axis]) for axis in axes]
    return ops.slice(given, *(np.array(each, np.int64) for each in (starts, stops, [1] * len(axes), axes))).output(0)
