"""Transposes that a graph written for N×H×W×C leaves behind, carried through what lies between them until they meet.

OpenVINO works on N×C×H×W and carries them through convolutions itself, but not through resizing, cutting and arg max:
each costs a copy of the whole map, and arg max over the last axis is slow where the numbers are bfloat16.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cloud.engines.openvino.dilation import constant_of
from cloud.engines.openvino.library import ops

Order = list[int]  # Of a transpose: axis `i` of its output is axis `order[i]` of its input.
_STRIDED_MASKS = ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
_INTERPOLATE_INPUTS = 3  # Of the current Interpolate: the map, the sizes or scales, the axes.


def sink_transposes(model: Any) -> int:
    """Rewrite an ov.Model in place; how many operations were moved. What is computed stays the same, number for number."""
    moved = 0
    for node in model.get_ordered_ops():
        sink = _SINKS.get(node.get_type_name())
        order = _order(node.input_value(0)) if sink is not None else None
        if sink is None or order is None:
            continue
        outputs = sink(node, node.input_value(0).get_node().input_value(0), order)
        if outputs is None:
            continue
        for place, output in enumerate(outputs):
            node.output(place).replace(output)
        moved += 1
    if moved:
        model.validate_nodes_and_infer_types()
    return moved


def _order(output: Any) -> Order | None:
    """Of the transpose that makes `output`; None where another operation does."""
    node = output.get_node()
    if node.get_type_name() != "Transpose" or (order := constant_of(node.input_value(1))) is None:
        return None
    return [int(axis) for axis in order]


def _after(outputs: Sequence[Any], order: Order) -> list[Any]:
    return [ops.transpose(output, np.array(order, np.int64)).output(0) for output in outputs]


def _through_transpose(node: Any, given: Any, order: Order) -> list[Any] | None:
    own = _order(node.output(0))
    if own is None:
        return None
    both = [order[axis] for axis in own]
    return [given] if both == sorted(both) else _after([given], both)


def _through_interpolate(node: Any, given: Any, order: Order) -> list[Any] | None:
    if node.get_input_size() != _INTERPOLATE_INPUTS or (axes := constant_of(node.input_value(2))) is None:
        return None
    how = node.get_attributes()
    if any(how["pads_begin"]) or any(how["pads_end"]):
        return None
    resized = ops.interpolate(
        given,
        node.input_value(1),
        how["mode"],
        how["shape_calculation_mode"],
        coordinate_transformation_mode=how["coordinate_transformation_mode"],
        nearest_mode=how["nearest_mode"],
        antialias=how["antialias"],
        cube_coeff=how["cube_coeff"],
        axes=np.array([order[axis] for axis in axes], np.int64),
    )
    resized.set_friendly_name(node.get_friendly_name())
    return _after([resized.output(0)], order)


def _through_strided_slice(node: Any, given: Any, order: Order) -> list[Any] | None:
    how = node.get_attributes()
    bounds = [constant_of(node.input_value(place)) for place in (1, 2, 3)]
    if any(any(how[mask]) for mask in _STRIDED_MASKS):
        return None
    if any(bound is None or len(bound) != len(order) for bound in bounds):
        return None
    places = np.argsort(order)  # Which axis of the transposed map each axis of the given one is.
    begin, end, step = (np.asarray(bound)[places].astype(np.int64) for bound in bounds)
    masks = [[(list(how[mask]) + [0] * len(order))[place] for place in places] for mask in ("begin_mask", "end_mask")]
    return _after([ops.strided_slice(given, begin, end, step, *masks).output(0)], order)


def _through_top_k(node: Any, given: Any, order: Order) -> list[Any]:
    how = node.get_attributes()
    found = ops.topk(
        given,
        node.input_value(1),
        order[int(how["axis"])],
        how["mode"],
        how["sort"],
        how["index_element_type"],
        how.get("stable", False),
    )
    return _after([found.output(0), found.output(1)], order)


def _through_squeeze(node: Any, given: Any, order: Order) -> list[Any] | None:
    if node.get_input_size() == 1 or (axes := constant_of(node.input_value(1))) is None:
        return None
    gone = [order[int(axis)] for axis in np.atleast_1d(axes)]
    kept = [axis for axis in order if axis not in gone]
    if kept != sorted(kept):
        return None
    return [ops.squeeze(given, np.array(gone, np.int64)).output(0)]


_SINKS: dict[str, Callable[[Any, Any, Order], list[Any] | None]] = {
    "Interpolate": _through_interpolate,
    "Squeeze": _through_squeeze,
    "StridedSlice": _through_strided_slice,
    "TopK": _through_top_k,
    "Transpose": _through_transpose,
}
