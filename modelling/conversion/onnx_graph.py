"""Queries and changes of an ONNX graph."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

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
