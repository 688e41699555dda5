"""Converts TensorFlow graphs to ONNX files with operations that ONNX Runtime can fuse."""

import logging
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.tensorflow.dilation import with_dilated_convolutions
from modelling.conversion.conversion_graph import ConversionGraph
from modelling.conversion.derived_model import IMAGES, ConversionError
from shared.files import write_file
from shared.inference.onnx_weights import checked_onnx_file

onnx: Any = import_module("onnx")  # Any: its type hints are incomplete.
import_module("onnx.numpy_helper")
import_module("onnx.shape_inference")

Shape = tuple[int | None, ...]


class OnnxGraph:
    """An onnx.ModelProto that is changed in place."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._graph = model.graph
        self._constants = {each.name: each for each in self._graph.initializer}

    def nodes(self, *operations: str) -> list[Any]:
        """Returns the nodes of the given operations, or all nodes, in order of computation."""
        return [node for node in self._graph.node if not operations or node.op_type in operations]

    def producer(self, tensor: str) -> Any:
        """Returns the node that computes a tensor; None for an input or a constant."""
        return next((node for node in self._graph.node if tensor in node.output), None)

    def only_user(self, tensor: str) -> Any:
        """Returns the one node that reads a tensor; None if several do, or if it is an output of the graph."""
        users = [node for node in self._graph.node if tensor in node.input]
        is_output = any(each.name == tensor for each in self._graph.output)
        return users[0] if len(users) == 1 and not is_output else None

    def constant(self, tensor: str) -> Any:
        """Returns a constant's array; None for any other tensor."""
        initializer = self._constants.get(tensor)
        return None if initializer is None else onnx.numpy_helper.to_array(initializer)

    def number(self, tensor: str) -> float | None:
        """Returns a constant of one element; None for any other tensor."""
        values = self.constant(tensor)
        return float(values.reshape(-1)[0]) if values is not None and values.size == 1 else None

    def with_number(self, node: Any) -> tuple[str, float | None]:
        """Returns the tensor and the number that a binary node combines; the number is None if both are tensors."""
        for place in (1, 0):
            value = self.number(node.input[place])
            if value is not None:
                return node.input[1 - place], value
        return node.input[0], None

    def attribute(self, node: Any, name: str, default: Any = None) -> Any:
        """Returns an attribute's value."""
        return next((onnx.helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)

    def set_attribute(self, node: Any, name: str, value: Any) -> None:
        """Adds an attribute to a node."""
        node.attribute.append(onnx.helper.make_attribute(name, value))

    def add_constant(self, name: str, values: Any) -> str:
        """Adds a constant; returns its name."""
        tensor = onnx.numpy_helper.from_array(values, name)
        self._graph.initializer.append(tensor)
        self._constants[name] = tensor
        return name

    def replace(
        self, nodes: Sequence[Any], operation: str, inputs: Sequence[str], output: str, **attributes: Any
    ) -> None:
        """Replaces some nodes by one; `output` is that of the last of them."""
        position = list(self._graph.node).index(nodes[-1])
        replacement = onnx.helper.make_node(operation, list(inputs), [output], name=nodes[-1].name, **attributes)
        self._graph.node.insert(position, replacement)
        for node in nodes:
            self._graph.node.remove(node)

    def rename(self, names: dict[str, str]) -> None:
        """Renames tensors, including inputs and outputs of the graph."""
        for node in self._graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        for end in (*self._graph.input, *self._graph.output):
            end.name = names.get(end.name, end.name)

    def set_batch_size(self, size: int | None) -> None:
        """Sets the first dimension of every input and output; None accepts any size."""
        for end in (*self._graph.input, *self._graph.output):
            sides = end.type.tensor_type.shape.dim
            if not sides:
                continue
            sides[0].Clear()
            if size is None:
                sides[0].dim_param = "N"
            else:
                sides[0].dim_value = size

    def shapes(self) -> dict[str, Shape]:
        """Returns the shapes of all tensors whose rank can be inferred."""
        inferred = onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph
        return {
            each.name: tuple(
                side.dim_value if side.HasField("dim_value") else None for side in each.type.tensor_type.shape.dim
            )
            for each in (*inferred.value_info, *inferred.input, *inferred.output)
        }

    def drop_unused(self) -> None:
        """Removes the constants that no node reads."""
        read = {name for node in self._graph.node for name in node.input} | {each.name for each in self._graph.output}
        kept = [each for each in self._graph.initializer if each.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)
        self._constants = {each.name: each for each in kept}


OPSET = 18  # The first one whose Resize has an `axes` attribute, which any batch size requires.


def onnx_of(conversion: ConversionGraph) -> Any:
    """Returns an onnx.ModelProto from `images`, uint8 N×H×W×3, to the heads.

    Raises:
        ConversionError: an operation has no equivalent in ONNX.
    """
    tf2onnx = import_module("tf2onnx")
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tf2onnx uses deprecated NumPy functions.
            model, _ = tf2onnx.convert.from_graph_def(
                with_dilated_convolutions(conversion.graph, conversion.output_tensors),
                input_names=[conversion.input_tensor],
                output_names=conversion.output_tensors,
                opset=OPSET,
            )
    except Exception as error:  # tf2onnx's errors have no common base class.
        raise ConversionError("onnx", error) from error
    return _optimised(model, conversion)


def read_onnx(path: Path) -> Any:
    """Reads an onnx.ModelProto with its weights from a file, or from a folder with one file and its weights.

    Raises:
        ConversionError: the file is not ONNX.
        EngineError: it keeps weights outside of `path`.
    """
    file = checked_onnx_file(path)
    onnx = import_module("onnx")
    try:
        model = onnx.load_model(file)
        onnx.checker.check_model(model)
    except Exception as error:  # Errors of protobuf and of the checker.
        raise ConversionError("another format", f"{path}: {error}") from error
    return model


def write_onnx(model: Any, path: Path) -> None:
    """Writes a ModelProto together with its weights."""
    write_file(path, model.SerializeToString(deterministic=True))


def half_onnx(model: Any) -> Any:
    """Returns the model with weights and arithmetic in float16, and unchanged input and output types."""
    return import_module("onnxruntime.transformers.float16").convert_float_to_float16(model, keep_io_types=True)


def _optimised(model: Any, conversion: ConversionGraph) -> Any:
    del model.graph.value_info[:]  # tf2onnx's shapes are wrong for rounded sizes.
    graph = OnnxGraph(model)
    graph.rename({conversion.input_tensor: IMAGES, **{f"{head}:0": head for head in conversion.heads}})
    graph.set_batch_size(conversion.batch_size)
    _resize_to_sizes(graph)
    _fuse_hard_swish(graph)
    _name_global_means(graph)
    graph.drop_unused()
    return graph.model


def _resize_to_sizes(graph: OnnxGraph) -> None:
    """Replaces fractional scales of Resize by the output size, because 21 times 121 / 21 gives 120 in float32.

    Whole scales stay, because ONNX Runtime has a faster kernel for them.
    """
    while True:
        shapes = graph.shapes()
        for node in graph.nodes("Resize"):
            scales = graph.constant(node.input[2]) if len(node.input) == 3 else None  # Data, region, scales.
            sides = shapes.get(node.input[0], ())[2:]
            if scales is None or None in sides or len(sides) != len(scales[2:]) or (scales == np.round(scales)).all():
                continue
            sizes = np.array(
                [round(side * float(scale)) for side, scale in zip(sides, scales[2:], strict=True) if side]
            )
            node.input[1:] = ["", "", graph.add_constant(f"{node.name}/sizes", sizes.astype(np.int64))]
            graph.set_attribute(node, "axes", [2, 3])
            break  # The shapes after this node have changed.
        else:
            return


def _fuse_hard_swish(graph: OnnxGraph) -> None:
    """Replaces `Clip(x + 3, 0, 6) / 6` by HardSigmoid: one pass over the map instead of three."""
    for clip in graph.nodes("Clip"):
        add, scaling = graph.producer(clip.input[0]), graph.only_user(clip.output[0])
        limits = [graph.number(name) for name in clip.input[1:]]
        if add is None or add.op_type != "Add" or graph.only_user(clip.input[0]) is None or limits != [0.0, 6.0]:
            continue
        if scaling is None or scaling.op_type not in ("Mul", "Div"):
            continue
        source, three = graph.with_number(add)
        clipped, sixth = graph.with_number(scaling)
        expected = 1 / 6 if scaling.op_type == "Mul" else 6.0
        if three != 3.0 or sixth is None or clipped != clip.output[0] or not np.isclose(sixth, expected, rtol=1e-6):
            continue
        graph.replace([add, clip, scaling], "HardSigmoid", [source], scaling.output[0], alpha=1 / 6, beta=0.5)


def _name_global_means(graph: OnnxGraph) -> None:
    """Replaces means over rows and columns by GlobalAveragePool, which ONNX Runtime keeps in its blocked layout."""
    for node in graph.nodes("ReduceMean"):
        axes = graph.constant(node.input[1]) if len(node.input) > 1 else None
        if axes is not None and sorted(axes.tolist()) == [2, 3] and graph.attribute(node, "keepdims", 1) == 1:
            graph.replace([node], "GlobalAveragePool", [node.input[0]], node.output[0])
