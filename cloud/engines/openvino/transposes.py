"""Removes the transposes of graphs written for N×H×W×C by moving each one down until two cancel out.

OpenVINO works on N×C×H×W and moves transposes through convolutions itself, but not through resizing, slicing and arg max.
Each remaining transpose copies the whole map, and arg max over the last axis is slow in bfloat16.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cloud.engines.openvino.runtime import ops

Order = list[int]  # A transpose's order: axis `i` of its output is axis `order[i]` of its input.
_UNSUPPORTED_MASKS = ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
_INTERPOLATE_INPUTS = 3  # The current Interpolate takes the map, the sizes or scales, and the axes.


def sink_transposes(model: Any) -> int:
    """Rewrites an ov.Model in place, with identical outputs; returns the number of moved operations."""
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


def _constant_of(output: Any) -> Any | None:
    """Returns the values of a constant output as an array; None for any other output."""
    node = output.get_node()
    return np.asarray(node.get_data()) if node.get_type_name() == "Constant" else None


def _order(output: Any) -> Order | None:
    """Returns the order of the transpose that produces `output`; None if another operation does."""
    node = output.get_node()
    if node.get_type_name() != "Transpose" or (order := _constant_of(node.input_value(1))) is None:
        return None
    return [int(axis) for axis in order]


def _transposed(outputs: Sequence[Any], order: Order) -> list[Any]:
    return [ops.transpose(output, np.array(order, np.int64)).output(0) for output in outputs]


def _through_transpose(node: Any, source: Any, order: Order) -> list[Any] | None:
    own = _order(node.output(0))
    if own is None:
        return None
    both = [order[axis] for axis in own]
    return [source] if both == sorted(both) else _transposed([source], both)


def _through_interpolate(node: Any, source: Any, order: Order) -> list[Any] | None:
    if node.get_input_size() != _INTERPOLATE_INPUTS or (axes := _constant_of(node.input_value(2))) is None:
        return None
    attributes = node.get_attributes()
    if any(attributes["pads_begin"]) or any(attributes["pads_end"]):
        return None
    resized = ops.interpolate(
        source,
        node.input_value(1),
        attributes["mode"],
        attributes["shape_calculation_mode"],
        coordinate_transformation_mode=attributes["coordinate_transformation_mode"],
        nearest_mode=attributes["nearest_mode"],
        antialias=attributes["antialias"],
        cube_coeff=attributes["cube_coeff"],
        axes=np.array([order[axis] for axis in axes], np.int64),
    )
    resized.set_friendly_name(node.get_friendly_name())
    return _transposed([resized.output(0)], order)


def _through_strided_slice(node: Any, source: Any, order: Order) -> list[Any] | None:
    attributes = node.get_attributes()
    limits = [_constant_of(node.input_value(place)) for place in (1, 2, 3)]
    if any(any(attributes[mask]) for mask in _UNSUPPORTED_MASKS):
        return None
    if any(limit is None or len(limit) != len(order) for limit in limits):
        return None
    axes = np.argsort(order)  # The axis of the transposed map for each axis of the source.
    begin, end, step = (np.asarray(limit)[axes].astype(np.int64) for limit in limits)
    masks = [
        [(list(attributes[mask]) + [0] * len(order))[axis] for axis in axes] for mask in ("begin_mask", "end_mask")
    ]
    return _transposed([ops.strided_slice(source, begin, end, step, *masks).output(0)], order)


def _through_top_k(node: Any, source: Any, order: Order) -> list[Any]:
    attributes = node.get_attributes()
    top = ops.topk(
        source,
        node.input_value(1),
        order[int(attributes["axis"])],
        attributes["mode"],
        attributes["sort"],
        attributes["index_element_type"],
        attributes.get("stable", False),
    )
    return _transposed([top.output(0), top.output(1)], order)


def _through_squeeze(node: Any, source: Any, order: Order) -> list[Any] | None:
    if node.get_input_size() == 1 or (axes := _constant_of(node.input_value(1))) is None:
        return None
    removed = [order[int(axis)] for axis in np.atleast_1d(axes)]
    kept = [axis for axis in order if axis not in removed]
    if kept != sorted(kept):
        return None
    return [ops.squeeze(source, np.array(removed, np.int64)).output(0)]


_SINKS: dict[str, Callable[[Any, Any, Order], list[Any] | None]] = {
    "Interpolate": _through_interpolate,
    "Squeeze": _through_squeeze,
    "StridedSlice": _through_strided_slice,
    "TopK": _through_top_k,
    "Transpose": _through_transpose,
}
