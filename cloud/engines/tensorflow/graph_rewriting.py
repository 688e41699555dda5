"""Rewriting TensorFlow's graphs: a free batch, and layers moved to where they cost less. Nothing rounds otherwise.

Each rewriting gives a new GraphDef; where its conditions do not hold, the graph comes back as it was.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cloud.engines.tensorflow.graphdef import node_of
from cloud.engines.tensorflow.library import tf

_UNARY = {"Relu", "Relu6", "Identity", "Sigmoid", "Elu", "Softplus"}
_BINARY = {"AddV2", "Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"}
_ONES = (1, 1, 1, 1)
_PLACES = 0b1001  # Batch and channels, as bits of a StridedSlice's masks.


def freed(graph: Any, input_tensor: str, *, reshapes: bool = False) -> Any:
    """The graph with any batch size at its input, instead of the one baked into the placeholder.

    `reshapes`: also where a constant tells a Reshape that its first side is the baked batch. Whether the rest of the
    graph bears it, only a run tells.
    """
    free = _copied(graph)
    nodes = _by_name(free)
    sides = nodes[node_of(input_tensor)].attr["shape"].shape.dim
    baked = sides[0].size
    sides[0].size = -1
    for node in free.node if reshapes else ():
        shape = nodes.get(node_of(node.input[1])) if node.op == "Reshape" else None
        if shape is None or shape.op != "Const" or _is_constant(nodes, node_of(node.input[0])):
            continue
        values = tf.make_ndarray(shape.attr["value"].tensor)
        if values.ndim == 1 and len(values) > 1 and values[0] == baked and (values > 0).all():
            own = free.node.add()
            own.CopyFrom(shape)
            own.name = f"{node.name}/free_shape"
            values = values.copy()
            values[0] = -1
            own.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, dtype=values.dtype))
            node.input[1] = own.name
    for node in free.node:
        node.attr.pop("_output_shapes", None)  # Hints of the exporter's, with the baked batch in them.
    return free


def defer_widening_layers(graph: Any, outputs: Iterable[str]) -> Any:
    """The graph with a pointwise layer moved behind the BatchToSpaceND that it stands before.

    A dilated stage works on the phases of a map and joins them at its end. A 1×1 convolution with its activation
    gives each pixel the same before and after the join, but makes the map wider: joined first, fewer bytes move.
    """
    joined = _copied(graph)
    nodes = _by_name(joined)
    users = _users(joined)
    kept = {node_of(output) for output in outputs}
    for join in [node for node in joined.node if node.op == "BatchToSpaceND"]:
        found = _layer_before(join, nodes, users)
        if found is None:
            continue
        convolution, last = found
        end = _end_of_join(join, nodes, users)
        if {join.name, end, last} & kept:
            continue
        for user in users[end]:
            _redirect(nodes[user], end, last)
        join.input[0], convolution.input[0] = convolution.input[0], end
        users = _users(joined)
    return joined


def _layer_before(join: Any, nodes: Mapping[str, Any], users: Mapping[str, list[str]]) -> tuple[Any, str] | None:
    """The widening 1×1 convolution of the layer that `join` reads, and the layer's last operation; None without one."""
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
        elif node.op in _BINARY and _are_alike(node, nodes):
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
    """Whether it is a 1×1 convolution, of any stride but 1 none, that gives more channels than it takes."""
    weights = nodes[node_of(convolution.input[1])]
    while weights.op == "Identity":
        weights = nodes[node_of(weights.input[0])]
    if weights.op != "Const" or convolution.attr["data_format"].s not in (b"", b"NHWC"):
        return False
    height, width, taken, given = (side.size for side in weights.attr["value"].tensor.tensor_shape.dim)
    strides = tuple(convolution.attr["strides"].list.i)
    is_padded = convolution.attr["padding"].s == b"EXPLICIT"
    return (height, width) == (1, 1) and strides == _ONES and given > taken and not is_padded


def _end_of_join(join: Any, nodes: Mapping[str, Any], users: Mapping[str, list[str]]) -> str:
    """The last of the operations that put phases back and cut the padding off, each read by the next alone."""
    end = str(join.name)
    while len(users.get(end, ())) == 1:
        following = nodes[users[end][0]]
        if node_of(following.input[0]) != end or not (following.op == "BatchToSpaceND" or _crops_places(following)):
            break
        end = following.name
    return end


def _crops_places(node: Any) -> bool:
    """Whether it takes a part of a map's rows and columns, all of its batch and its channels."""
    if node.op != "StridedSlice":
        return False
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    whole = node.attr["begin_mask"].i & node.attr["end_mask"].i & _PLACES == _PLACES
    return whole and not any(node.attr[key].i for key in others)


def _are_alike(node: Any, nodes: Mapping[str, Any]) -> bool:
    """Whether its constant, if it has one, is the same at every pixel: a number, or one a channel."""
    for source in node.input:
        name = node_of(source)
        if not _is_constant(nodes, name):
            continue
        constant = nodes[name]
        if constant.op != "Const" or len(constant.attr["value"].tensor.tensor_shape.dim) > 1:
            return False
    return True


def _is_constant(nodes: Mapping[str, Any], name: str) -> bool:
    """Whether it depends on constants alone."""
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
            node.input[place] = source.replace(old, new, 1)  # A control input stays one.


def _users(graph: Any) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for node in graph.node:
        for source in node.input:
            users.setdefault(node_of(source), []).append(node.name)
    return users


def _by_name(graph: Any) -> dict[str, Any]:
    return {node.name: node for node in graph.node}


def _copied(graph: Any) -> Any:
    copy = tf.compat.v1.GraphDef()
    copy.CopyFrom(graph)
    return copy
