"""Dilation by phases (SpaceToBatchND … BatchToSpaceND) written as dilated convolutions, in TensorFlow's GraphDef.

TensorFlow runs a dilated depthwise convolution fastest on interleaved smaller maps stacked along the batch. Elsewhere
the cut and its inverse cost more than they save, and they tie the graph to a batch. On the whole map the same function
is: zeros where the cut padded, dilated convolutions inside, the crop where the inverse cropped.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cloud.engines.tensorflow.graphdef import node_of
from cloud.engines.tensorflow.library import tf

_BY_PIXEL = {  # What one pixel of the answer takes from one pixel of each operand.
    *("Identity", "Cast", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Neg", "Rsqrt"),
    *("AddV2", "Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "BiasAdd", "FusedBatchNormV3"),
}
_CONVOLUTIONS = {"Conv2D", "DepthwiseConv2dNative"}
_MAP_RANK = 4  # N×H×W×C


class _NotByPhases(Exception):  # noqa: N818 - never leaves this module.
    """Something between a cut and its inverse is no function of the whole map that is known here."""


class _Step(IntEnum):
    """How far the mean over a picture, which has several phases, has come."""

    MAP = 0  # Not begun.
    BY_PHASE = 1  # A mean for each phase.
    IN_A_ROW = 2  # Those, the phases of a picture along an axis of their own.
    WHOLE = 3  # Their mean.
    TILED = 4  # That, given to each phase again.


@dataclass(frozen=True, slots=True)
class _Value:
    """What a tensor of the phases stands for."""

    rates: tuple[int, ...]  # The cuts it lies in, outermost first.
    step: _Step = _Step.MAP


def undilated(graph: Any) -> Any:
    """`graph`, a frozen GraphDef, with dilated convolutions for the phases; itself where it has none, or others.

    The answer is a GraphDef for converters: TensorFlow's own CPU kernels do not run dilated depthwise convolutions.
    """
    if not any(node.op == "SpaceToBatchND" for node in graph.node):
        return graph
    try:
        return _Rewriting(graph).run()
    except _NotByPhases:
        return graph


class _Rewriting:
    """One pass over a graph in its order of computation."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.node}
        self._values: dict[str, _Value] = {}
        self._made = tf.compat.v1.GraphDef()
        self._made.versions.CopyFrom(graph.versions)
        self._made.library.CopyFrom(graph.library)

    def run(self) -> Any:
        for name in self._ordered():
            self._add(self._nodes[name])
        return self._made

    def _ordered(self) -> list[str]:
        """Names, each after what it is computed from."""
        ordered: dict[str, None] = {}
        waiting = [(node.name, False) for node in reversed(self._graph.node)]
        while waiting:
            name, ready = waiting.pop()
            if name in ordered or name not in self._nodes:
                continue
            if ready:
                ordered[name] = None
                continue
            waiting.append((name, True))
            waiting.extend((node_of(source), False) for source in self._nodes[name].input)
        return list(ordered)

    def _add(self, node: Any) -> None:
        sources = [node_of(source) for source in node.input if not source.startswith("^")]
        inside = {self._values[source] for source in sources if source in self._values}
        if node.op == "SpaceToBatchND":
            self._cut(node, inside)
        elif not inside:
            self._made.node.append(node)
        elif node.op == "BatchToSpaceND":
            self._join(node, inside)
        elif node.op == "Const":
            self._made.node.append(node)
        else:
            self._inside(node, inside)

    def _cut(self, node: Any, inside: set[_Value]) -> None:
        """A cut pads; the phases of a nested one are `rate` apart, and so is what it pads."""
        value = self._only(inside) if inside else _Value(())
        rate, pads = self._rate(node), self._constant(node.input[2]) * int(np.prod(value.rates, initial=1))
        self._values[node.name] = _Value((*value.rates, rate))
        if not pads.any():
            self._alias(node, node.input[0])
            return
        whole = np.zeros((_MAP_RANK, 2), np.int32)
        whole[1:3] = pads
        self._const(f"{node.name}/paddings_of_whole", whole)
        padded = self._made.node.add(name=node.name, op="Pad", input=[node.input[0], f"{node.name}/paddings_of_whole"])
        padded.attr["T"].CopyFrom(node.attr["T"])
        padded.attr["Tpaddings"].type = tf.int32.as_datatype_enum

    def _join(self, node: Any, inside: set[_Value]) -> None:
        value = self._only(inside)
        if value.step or not value.rates or value.rates[-1] != self._rate(node):
            raise _NotByPhases
        outer = value.rates[:-1]
        crops = self._constant(node.input[2]) * int(np.prod(outer, initial=1))
        if outer:
            self._values[node.name] = _Value(outer)
        if not crops.any():
            self._alias(node, node.input[0])
            return
        begin, end = np.zeros(_MAP_RANK, np.int32), np.zeros(_MAP_RANK, np.int32)
        begin[1:3], end[1:3] = crops[:, 0], -crops[:, 1]
        for part, content in (("begin", begin), ("end", end), ("strides", np.ones(_MAP_RANK, np.int32))):
            self._const(f"{node.name}/{part}", content)
        parts = [f"{node.name}/{part}" for part in ("begin", "end", "strides")]
        cropped = self._made.node.add(name=node.name, op="StridedSlice", input=[node.input[0], *parts])
        cropped.attr["T"].CopyFrom(node.attr["T"])
        cropped.attr["Index"].type = tf.int32.as_datatype_enum
        cropped.attr["begin_mask"].i = 0b1001
        cropped.attr["end_mask"].i = 0b1001 | sum(0b10 << side for side in range(2) if not crops[side, 1])

    def _inside(self, node: Any, inside: set[_Value]) -> None:
        """An operation on phases becomes the same on the whole map."""
        if node.op in _CONVOLUTIONS:
            self._convolution(node, self._only(inside))
        elif node.op in ("Mean", "Reshape", "Tile"):
            self._pooling(node, self._only(inside))
        elif node.op in _BY_PIXEL:
            if len({value.rates for value in inside}) != 1 or any(
                value.step not in (_Step.MAP, _Step.TILED) for value in inside
            ):
                raise _NotByPhases
            self._values[node.name] = _Value(next(iter(inside)).rates, min(value.step for value in inside))
            self._made.node.append(node)
        else:
            raise _NotByPhases

    def _convolution(self, node: Any, value: _Value) -> None:
        if node_of(node.input[0]) not in self._values or node_of(node.input[1]) in self._values:
            raise _NotByPhases
        kernel = self._shape(node.input[1])[:2]
        if node.attr["data_format"].s not in (b"", b"NHWC") or any(
            stride != 1 for stride in node.attr["strides"].list.i
        ):
            raise _NotByPhases
        self._values[node.name] = value
        made = self._made.node.add()
        made.CopyFrom(node)
        if kernel == [1, 1] and value.step in (_Step.MAP, _Step.TILED):
            return
        if value.step is not _Step.MAP:
            raise _NotByPhases
        # Other paddings, and those of even kernels, do not lie the same on both sides of each phase.
        if node.attr["padding"].s != b"VALID" and (
            node.attr["padding"].s != b"SAME" or any(k % 2 == 0 for k in kernel)
        ):
            raise _NotByPhases
        before = list(node.attr["dilations"].list.i) or [1] * _MAP_RANK
        factor = int(np.prod(value.rates))
        made.attr["dilations"].list.i[:] = [1, before[1] * factor, before[2] * factor, 1]

    def _pooling(self, node: Any, value: _Value) -> None:
        """The mean of a picture's phases, step by step; on the whole map the first step is all there is to do."""
        phases = int(np.prod(value.rates)) ** 2
        told = self._constant(node.input[1]).tolist()
        keeps = node.attr["keep_dims"].b
        match value.step, node.op:
            case _Step.MAP, "Mean" if told == [1, 2] and keeps:
                self._made.node.append(node)
            case _Step.BY_PHASE, "Reshape" if told[:1] == [phases] and told[2:4] == [1, 1]:
                self._alias(node, node.input[0])
            case _Step.IN_A_ROW, "Mean" if told in (0, [0]) and not keeps:
                self._alias(node, node.input[0])
            case _Step.WHOLE, "Tile" if told == [phases, 1, 1, 1]:
                self._alias(node, node.input[0])
            case _:
                raise _NotByPhases
        self._values[node.name] = _Value(value.rates, _Step(value.step + 1))

    def _only(self, inside: set[_Value]) -> _Value:
        if len(inside) != 1:
            raise _NotByPhases
        return next(iter(inside))

    def _rate(self, node: Any) -> int:
        rates = self._constant(node.input[1]).tolist()
        if len(rates) != 2 or rates[0] != rates[1]:  # noqa: PLR2004 - height and width.
            raise _NotByPhases
        return int(rates[0])

    def _constant(self, source: str) -> Any:
        node = self._nodes.get(node_of(source))
        while node is not None and node.op == "Identity":
            node = self._nodes.get(node_of(node.input[0]))
        if node is None or node.op != "Const":
            raise _NotByPhases
        return tf.make_ndarray(node.attr["value"].tensor)

    def _shape(self, source: str) -> list[int]:
        return list(self._constant(source).shape)

    def _const(self, name: str, content: Any) -> None:
        node = self._made.node.add(name=name, op="Const")
        node.attr["dtype"].type = tf.as_dtype(content.dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(content))

    def _alias(self, node: Any, source: str) -> None:
        made = self._made.node.add(name=node.name, op="Identity", input=[source])
        made.attr["T"].CopyFrom(node.attr["T"])
