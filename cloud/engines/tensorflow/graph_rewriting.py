"""Rewrites GraphDefs: any batch size, and layers moved to cheaper positions; results stay bit-identical.

Each function returns a new GraphDef, which is an unchanged copy if its conditions do not hold.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cloud.engines.tensorflow.graphdef import node_of, readers
from cloud.engines.tensorflow.runtime import tf

_UNARY = {"Relu", "Relu6", "Identity", "Sigmoid", "Elu", "Softplus"}
_BINARY = {"AddV2", "Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"}
_ONES = (1, 1, 1, 1)
_BATCH_AND_CHANNELS = 0b1001  # Bits in the masks of a StridedSlice on N×H×W×C.


def with_free_batch(graph: Any, input_tensor: str, *, reshapes: bool = False) -> Any:
    """Returns the graph with an input of any batch size, instead of the placeholder's fixed size.

    The caller must run the result to find out whether the rest of the graph supports it.

    Args:
        graph: The GraphDef.
        input_tensor: The input placeholder.
        reshapes: Also replace the batch size in the constant shapes of Reshape operations.
    """
    free = _copied(graph)
    nodes = _by_name(free)
    sides = nodes[node_of(input_tensor)].attr["shape"].shape.dim
    fixed_size = sides[0].size
    sides[0].size = -1
    for node in free.node if reshapes else ():
        shape = nodes.get(node_of(node.input[1])) if node.op == "Reshape" else None
        if shape is None or shape.op != "Const" or _is_constant(nodes, node_of(node.input[0])):
            continue
        values = tf.make_ndarray(shape.attr["value"].tensor)
        if values.ndim == 1 and len(values) > 1 and values[0] == fixed_size and (values > 0).all():
            free_shape = free.node.add()
            free_shape.CopyFrom(shape)
            free_shape.name = f"{node.name}/free_shape"
            values = values.copy()
            values[0] = -1
            free_shape.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, dtype=values.dtype))
            node.input[1] = free_shape.name
    for node in free.node:
        node.attr.pop("_output_shapes", None)  # The exporter's hints contain the fixed batch size.
    return free


def defer_widening_layers(graph: Any, outputs: Iterable[str]) -> Any:
    """Returns the graph with each widening 1×1 convolution moved from before a BatchToSpaceND to after it.

    A dilated stage ends with BatchToSpaceND, which joins the interleaved parts of a map. A 1×1 convolution and its
    activation give the same results on either side, but increase the number of channels; after the join, fewer bytes move.
    """
    joined = _copied(graph)
    nodes = _by_name(joined)
    users = readers(joined)
    kept = {node_of(output) for output in outputs}
    for join in [node for node in joined.node if node.op == "BatchToSpaceND"]:
        layer = _layer_before(join, nodes, users)
        if layer is None:
            continue
        convolution, last = layer
        end = _end_of_join(join, nodes, users)
        if {join.name, end, last} & kept:
            continue
        for user in users[end]:
            _redirect(nodes[user], end, last)
        join.input[0], convolution.input[0] = convolution.input[0], end
        users = readers(joined)
    return joined


def _layer_before(join: Any, nodes: Mapping[str, Any], users: Mapping[str, list[str]]) -> tuple[Any, str] | None:
    """Returns the widening 1×1 convolution of the layer before `join`, and the layer's last operation, or None."""
    last = node_of(join.input[0])
    layer: set[str] = set()
    convolutions: set[str] = set()
    waiting = [last]
    while waiting:
        name = waiting.pop()
        if name in layer or _is_constant(nodes, name):
            continue
        layer.add(name)
        node = nodes[name]
        if node.op == "Conv2D":
            convolutions.add(name)
        elif node.op == "BiasAdd" or node.op in _UNARY:
            waiting.append(node_of(node.input[0]))
        elif node.op in _BINARY and _has_uniform_constants(node, nodes):
            waiting.extend(node_of(source) for source in node.input)
        else:
            return None
    if len(convolutions) != 1 or users[last] != [join.name]:
        return None
    if any(user not in layer for name in layer - {last} for user in users.get(name, ())):
        return None
    (name,) = convolutions
    return (nodes[name], last) if _widens(nodes[name], nodes) else None


def _widens(convolution: Any, nodes: Mapping[str, Any]) -> bool:
    """Returns whether it is a 1×1 convolution with stride 1 and more output than input channels."""
    weights = nodes[node_of(convolution.input[1])]
    while weights.op == "Identity":
        weights = nodes[node_of(weights.input[0])]
    if weights.op != "Const" or convolution.attr["data_format"].s not in (b"", b"NHWC"):
        return False
    height, width, inputs, outputs = (side.size for side in weights.attr["value"].tensor.tensor_shape.dim)
    strides = tuple(convolution.attr["strides"].list.i)
    is_padded = convolution.attr["padding"].s == b"EXPLICIT"
    return (height, width) == (1, 1) and strides == _ONES and outputs > inputs and not is_padded


def _end_of_join(join: Any, nodes: Mapping[str, Any], users: Mapping[str, list[str]]) -> str:
    """Returns the last operation of the chain of BatchToSpaceND and crops that starts at `join`."""
    end = str(join.name)
    while len(users.get(end, ())) == 1:
        following = nodes[users[end][0]]
        if node_of(following.input[0]) != end or not (following.op == "BatchToSpaceND" or _crops(following)):
            break
        end = following.name
    return end


def _crops(node: Any) -> bool:
    """Returns whether it selects rows and columns of a map, with the whole batch and all channels."""
    if node.op != "StridedSlice":
        return False
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = node.attr["begin_mask"].i & node.attr["end_mask"].i
    return masks & _BATCH_AND_CHANNELS == _BATCH_AND_CHANNELS and not any(node.attr[key].i for key in others)


def _has_uniform_constants(node: Any, nodes: Mapping[str, Any]) -> bool:
    """Returns whether its constant operands are the same for every pixel: a scalar, or one number per channel."""
    for source in node.input:
        name = node_of(source)
        if not _is_constant(nodes, name):
            continue
        constant = nodes[name]
        if constant.op != "Const" or len(constant.attr["value"].tensor.tensor_shape.dim) > 1:
            return False
    return True


def _is_constant(nodes: Mapping[str, Any], name: str) -> bool:
    """Returns whether an operation depends on constants only."""
    waiting = [name]
    seen: set[str] = set()
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None or (node.op != "Const" and not node.input):
            return False
        if node.name not in seen:
            seen.add(node.name)
            waiting.extend(node_of(source) for source in node.input)
    return True


def _redirect(node: Any, old: str, new: str) -> None:
    for place, source in enumerate(node.input):
        if node_of(source) == old:
            node.input[place] = source.replace(old, new, 1)  # Keeps the "^" of a control input.


def _by_name(graph: Any) -> dict[str, Any]:
    return {node.name: node for node in graph.node}


def _copied(graph: Any) -> Any:
    copy = tf.compat.v1.GraphDef()
    copy.CopyFrom(graph)
    return copy
