"""Replaces space-to-batch dilation in a TensorFlow GraphDef by dilated convolutions, for OpenVINO and ONNX.

TensorFlow runs a dilated depthwise convolution fastest between SpaceToBatchND, which splits a map into interleaved smaller
maps (its phases) stacked along the batch, and BatchToSpaceND. Other runtimes are slower that way, and the graph depends on
the batch size. On the whole map, the equivalent is: pad as SpaceToBatchND does, convolve with dilation, crop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from typing import Any

import numpy as np

from cloud.engines.tensorflow.graphdef import node_of
from cloud.engines.tensorflow.runtime import tf

_ELEMENTWISE = {
    *("Identity", "Cast", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Neg", "Rsqrt"),
    *("Abs", "Ceil", "Exp", "Floor"),
    *("AddV2", "Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "BiasAdd", "FusedBatchNormV3"),
}
_CONVOLUTIONS = {"Conv2D", "DepthwiseConv2dNative"}
_MAP_RANK = 4  # N×H×W×C

_optimiser: Any = import_module("tensorflow.python.grappler.tf_optimizer")


class _UnsupportedGraphError(Exception):
    """The graph has an operation on phases that this pass does not know."""


class _PoolingStep(IntEnum):
    """The progress of computing the mean over an image from the means of its phases."""

    MAP = 0  # Still a map: computing the mean has not started.
    PHASE_MEANS = 1  # One mean per phase.
    SEPARATE_AXIS = 2  # The phase means, with the phases on an axis of their own.
    WHOLE = 3  # The mean of the phase means.
    TILED = 4  # The mean, repeated for each phase.


@dataclass(frozen=True, slots=True)
class _SplitTensor:
    """The state of a tensor between SpaceToBatchND and BatchToSpaceND."""

    rates: tuple[int, ...]  # The block sizes of the enclosing SpaceToBatchND operations, outermost first.
    step: _PoolingStep = _PoolingStep.MAP


def fold_constants(definition: Any, kept: Sequence[str]) -> Any:
    """Returns a GraphDef with all constant expressions evaluated, including shape arithmetic for a known image size.

    `kept` names the operations that must not be removed.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(_with_known_sizes(definition), name="")
        for name in kept:
            graph.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, graph.get_operation_by_name(name))
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers[:] = ["constfold", "function", "constfold"]
    options.meta_optimizer_iterations = 1
    options.min_graph_nodes = -1  # Optimises small graphs too.
    return _optimiser.OptimizeGraph(config, meta)


def _with_known_sizes(definition: Any) -> Any:
    """Returns a GraphDef with a constant for each known side of a tensor whose batch size is free."""
    graph, result = tf.Graph(), tf.compat.v1.GraphDef()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    result.CopyFrom(definition)
    for node in result.node:
        if node.op != "StridedSlice" or not node.attr["shrink_axis_mask"].i:
            continue
        shape, axis, *_ = graph.get_operation_by_name(node.name).inputs
        axes = tf.get_static_value(axis)
        sides = shape.op.inputs[0].shape if shape.op.type == "Shape" else None
        if axes is None or len(axes) != 1 or sides is None or sides.rank is None or sides[int(axes[0])] is None:
            continue
        node.CopyFrom(tf.compat.v1.NodeDef(name=node.name, op="Const"))
        node.attr["dtype"].type = shape.dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(sides[int(axes[0])], shape.dtype))
    return result


def has_phases(graph: Any) -> bool:
    """Returns whether a GraphDef splits a map into phases."""
    return any(node.op == "SpaceToBatchND" for node in graph.node)


def with_dilated_convolutions(graph: Any, outputs: Iterable[str]) -> Any:
    """Returns a folded GraphDef with dilated convolutions, or `graph` itself if there is nothing it can replace.

    `outputs` are the tensors that the caller reads; they stay the same. The result is for other runtimes: TensorFlow's CPU
    kernels do not support dilated depthwise convolutions.
    """
    if not has_phases(graph):
        return graph
    try:
        return _DilationPass(graph).run(outputs)
    except (_UnsupportedGraphError, CycleError):  # A loop of TensorFlow 1 is a cycle.
        return graph


class _DilationPass:
    """One pass over a graph in order of computation."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.node}
        self._values: dict[str, _SplitTensor] = {}
        self._result = tf.compat.v1.GraphDef()
        self._result.versions.CopyFrom(graph.versions)
        self._result.library.CopyFrom(graph.library)

    def run(self, outputs: Iterable[str]) -> Any:
        sources = {node.name: [node_of(source) for source in node.input] for node in self._graph.node}
        for name in TopologicalSorter(sources).static_order():
            self._add(self._nodes[name])
        if any(node_of(output) in self._values for output in outputs):
            raise _UnsupportedGraphError
        return self._result

    def _add(self, node: Any) -> None:
        sources = [node_of(source) for source in node.input if not source.startswith("^")]
        inside = {self._values[source] for source in sources if source in self._values}
        if node.op == "SpaceToBatchND":
            self._split(node, inside)
        elif not inside:
            self._result.node.append(node)
        elif node.op == "BatchToSpaceND":
            self._join(node, inside)
        elif node.op == "Const":
            self._result.node.append(node)
        else:
            self._inside(node, inside)

    def _split(self, node: Any, inside: set[_SplitTensor]) -> None:
        """Replaces SpaceToBatchND by its padding; a nested one pads in multiples of the enclosing rates."""
        value = self._only(inside) if inside else _SplitTensor(())
        rate, pads = self._rate(node), self._constant(node.input[2]) * int(np.prod(value.rates, initial=1))
        self._values[node.name] = _SplitTensor((*value.rates, rate))
        if not pads.any():
            self._alias(node, node.input[0])
            return
        whole = np.zeros((_MAP_RANK, 2), np.int32)
        whole[1:3] = pads
        self._const(f"{node.name}/paddings_of_whole", whole)
        padded = self._result.node.add(
            name=node.name, op="Pad", input=[node.input[0], f"{node.name}/paddings_of_whole"]
        )
        padded.attr["T"].CopyFrom(node.attr["T"])
        padded.attr["Tpaddings"].type = tf.int32.as_datatype_enum

    def _join(self, node: Any, inside: set[_SplitTensor]) -> None:
        value = self._only(inside)
        if value.step or not value.rates or value.rates[-1] != self._rate(node):
            raise _UnsupportedGraphError
        outer = value.rates[:-1]
        crops = self._constant(node.input[2]) * int(np.prod(outer, initial=1))
        if outer:
            self._values[node.name] = _SplitTensor(outer)
        if not crops.any():
            self._alias(node, node.input[0])
            return
        begin, end = np.zeros(_MAP_RANK, np.int32), np.zeros(_MAP_RANK, np.int32)
        begin[1:3], end[1:3] = crops[:, 0], -crops[:, 1]
        for part, content in (("begin", begin), ("end", end), ("strides", np.ones(_MAP_RANK, np.int32))):
            self._const(f"{node.name}/{part}", content)
        parts = [f"{node.name}/{part}" for part in ("begin", "end", "strides")]
        cropped = self._result.node.add(name=node.name, op="StridedSlice", input=[node.input[0], *parts])
        cropped.attr["T"].CopyFrom(node.attr["T"])
        cropped.attr["Index"].type = tf.int32.as_datatype_enum
        cropped.attr["begin_mask"].i = 0b1001
        cropped.attr["end_mask"].i = 0b1001 | sum(0b10 << side for side in range(2) if not crops[side, 1])

    def _inside(self, node: Any, inside: set[_SplitTensor]) -> None:
        """Replaces an operation on phases by its equivalent on the whole map."""
        if "data_format" in node.attr and node.attr["data_format"].s not in (b"", b"NHWC"):
            raise _UnsupportedGraphError
        if node.op in _CONVOLUTIONS:
            self._convolution(node, self._only(inside))
        elif node.op in ("Mean", "Reshape", "Tile"):
            self._pooling(node, self._only(inside))
        elif node.op in _ELEMENTWISE:
            if len({value.rates for value in inside}) != 1 or any(
                value.step not in (_PoolingStep.MAP, _PoolingStep.TILED) for value in inside
            ):
                raise _UnsupportedGraphError
            for source in node.input:
                # Other operands must be the same for every phase: a scalar, or one number per channel.
                if (
                    not source.startswith("^")
                    and node_of(source) not in self._values
                    and any(side != 1 for side in self._shape(source)[:-1])
                ):
                    raise _UnsupportedGraphError
            self._values[node.name] = _SplitTensor(next(iter(inside)).rates, min(value.step for value in inside))
            self._result.node.append(node)
        else:
            raise _UnsupportedGraphError

    def _convolution(self, node: Any, value: _SplitTensor) -> None:
        if node_of(node.input[0]) not in self._values or node_of(node.input[1]) in self._values:
            raise _UnsupportedGraphError
        kernel = self._shape(node.input[1])[:2]
        if any(stride != 1 for stride in node.attr["strides"].list.i):
            raise _UnsupportedGraphError
        self._values[node.name] = value
        dilated = self._result.node.add()
        dilated.CopyFrom(node)
        # Other paddings, and SAME for even kernels, are not the same on both sides of each phase.
        if node.attr["padding"].s != b"VALID" and (
            node.attr["padding"].s != b"SAME" or any(k % 2 == 0 for k in kernel)
        ):
            raise _UnsupportedGraphError
        if kernel == [1, 1] and value.step in (_PoolingStep.MAP, _PoolingStep.TILED):
            return
        if value.step is not _PoolingStep.MAP:
            raise _UnsupportedGraphError
        before = list(node.attr["dilations"].list.i) or [1] * _MAP_RANK
        factor = int(np.prod(value.rates))
        dilated.attr["dilations"].list.i[:] = [1, before[1] * factor, before[2] * factor, 1]

    def _pooling(self, node: Any, value: _SplitTensor) -> None:
        """Keeps the first step of computing the mean of an image, and bypasses the steps that combine its phases."""
        phases = int(np.prod(value.rates)) ** 2
        operand = self._constant(node.input[1]).tolist()
        keeps = node.attr["keep_dims"].b
        match value.step, node.op:
            case _PoolingStep.MAP, "Mean" if operand == [1, 2] and keeps:
                self._result.node.append(node)
            case _PoolingStep.PHASE_MEANS, "Reshape" if operand[:1] == [phases] and operand[2:4] == [1, 1]:
                self._alias(node, node.input[0])
            case _PoolingStep.SEPARATE_AXIS, "Mean" if operand in (0, [0]) and not keeps:
                self._alias(node, node.input[0])
            case _PoolingStep.WHOLE, "Tile" if operand == [phases, 1, 1, 1]:
                self._alias(node, node.input[0])
            case _:
                raise _UnsupportedGraphError
        self._values[node.name] = _SplitTensor(value.rates, _PoolingStep(value.step + 1))

    def _only(self, inside: set[_SplitTensor]) -> _SplitTensor:
        if len(inside) != 1:
            raise _UnsupportedGraphError
        return next(iter(inside))

    def _rate(self, node: Any) -> int:
        rates = self._constant(node.input[1]).tolist()
        if len(rates) != 2 or rates[0] != rates[1]:  # Height and width.
            raise _UnsupportedGraphError
        return int(rates[0])

    def _constant(self, source: str) -> Any:
        node = self._nodes.get(node_of(source))
        while node is not None and node.op == "Identity":
            node = self._nodes.get(node_of(node.input[0]))
        if node is None or node.op != "Const":
            raise _UnsupportedGraphError
        return tf.make_ndarray(node.attr["value"].tensor)

    def _shape(self, source: str) -> list[int]:
        return list(self._constant(source).shape)

    def _const(self, name: str, content: Any) -> None:
        node = self._result.node.add(name=name, op="Const")
        node.attr["dtype"].type = tf.as_dtype(content.dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(content))

    def _alias(self, node: Any, source: str) -> None:
        alias = self._result.node.add(name=node.name, op="Identity", input=[source])
        alias.attr["T"].CopyFrom(node.attr["T"])
