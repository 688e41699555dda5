"""Finds the inputs and possible outputs of a third-party graph among unused placeholders and training operations."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.tensorflow.graphdef import dependent, node_of, reachable
from cloud.engines.tensorflow.runtime import tf
from modelling.inspection.model_tensors import Step, Tensor, first_arithmetic, input_scale, is_image, last_operation
from shared.errors import error_reason
from shared.inference.engine import EngineError

_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")


class GraphAnalysis:
    """A graph with inferred shapes.

    The arguments `inputs` and `outputs` map the names in a signature to tensors. Without them (a bare graph), every placeholder
    is an input, and every tensor may be the output.
    """

    def __init__(
        self, graph: Any, path: Path, inputs: Mapping[str, str] | None = None, outputs: Mapping[str, str] | None = None
    ) -> None:
        """Infers the shapes of `graph` (a GraphDef).

        Raises:
            EngineError: this TensorFlow cannot load it.
        """
        self._path = path
        self._definition = graph
        self._graph = tf.Graph()
        try:
            with self._graph.as_default():
                tf.import_graph_def(graph, name="")
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            raise EngineError(path, f"TensorFlow cannot load this graph: {error_reason(error)}") from error
        placeholders = {op.name: op.outputs[0].name for op in self._graph.get_operations() if op.type in _PLACEHOLDERS}
        bare = {node: node for node in placeholders.values()}  # A bare graph's inputs are named as tensors, "input:0".
        self.inputs = [self._tensor(name, node) for name, node in (inputs or bare).items()]
        self._named_outputs = [self._tensor(name, node) for name, node in (outputs or {}).items()]

    def outputs(self) -> list[Tensor]:
        """Returns the outputs that depend on an image and not on true labels: in a bare graph its ends, the last first."""
        ends = self._named_outputs or self._inner(lambda tensor: not tensor.consumers())[::-1]
        return self._after_images(ends)

    def inner_outputs(self) -> list[Tensor]:
        """Returns the integer tensors inside a bare graph that may be class ids: first those of an arg max, each the last first."""
        if self._named_outputs:
            return []
        inner = self._inner(lambda tensor: tensor.consumers() and tensor.dtype.is_integer)
        inner.sort(key=lambda each: self._graph.get_tensor_by_name(each.node).op.type == "ArgMax")
        return self._after_images(inner[::-1])

    def used(self, images: Sequence[Tensor], outputs: Iterable[Tensor]) -> list[Tensor]:
        """Returns the images on which the outputs depend, the best known shape first."""
        needed = reachable(self._definition, [each.node for each in outputs])
        used = [tensor for tensor in images if node_of(tensor.node) in needed]
        return sorted(used, key=lambda tensor: (-len(tensor.shape or ()), tensor.shape is None))

    def other_inputs(
        self, image: Tensor, outputs: Iterable[Tensor]
    ) -> tuple[dict[str, bool | int | float], tuple[Tensor, ...], list[str]]:
        """Returns the constants for the other inputs by name, the inputs on which no output depends, and notes."""
        needed = reachable(self._definition, [each.node for each in outputs])
        notes: list[str] = []
        constants = self._constants(image, needed, notes)
        return constants, tuple(each for each in self.inputs if node_of(each.node) not in needed), notes

    def scale(self, image: Tensor) -> tuple[float, str]:
        """Returns the factor from pixels 0..255 to the input's range, and the reason."""
        if not image.dtype.startswith("float"):
            return 1.0, f"{image.name} takes {image.dtype}: pixels are fed unchanged"
        return input_scale(first_arithmetic(image.node, self._uses))

    def random_operations(self, output: Tensor) -> list[str]:
        """Returns the operations before the output that generate random numbers, such as active dropout."""
        needed = reachable(self._definition, [output.node])
        return [node.name for node in self._definition.node if node.name in needed and "Random" in node.op]

    def _tensor(self, name: str, node: str) -> Tensor:
        tensor = self._graph.get_tensor_by_name(node)
        rank = tensor.shape.rank
        shape = None if rank is None else tuple(tensor.shape.as_list())
        operation, source = last_operation(node, self._producer)
        return Tensor(
            name, node, tensor.dtype.name, shape, operation=operation, classes=self._classes(operation, source)
        )

    def _producer(self, node: str) -> tuple[str, str] | None:
        operation = self._graph.get_tensor_by_name(node).op
        return (operation.type, operation.inputs[0].name) if operation.inputs else None

    def _classes(self, operation: str, source: str) -> int | None:
        """Returns the number of scores from which an arg max chooses."""
        if operation != "argmax":
            return None
        inputs = self._graph.get_tensor_by_name(source).op.inputs
        axis, scores = tf.get_static_value(inputs[1]), inputs[0].shape
        return None if axis is None or scores.rank is None else scores.as_list()[int(axis)]

    def _inner(self, is_wanted: Any) -> list[Tensor]:
        return [
            self._tensor(operation.outputs[0].name, operation.outputs[0].name)
            for operation in self._graph.get_operations()
            if operation.type not in (*_PLACEHOLDERS, "Const") and operation.outputs and is_wanted(operation.outputs[0])
        ]

    def _after_images(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        dependents = self._dependent(filter(is_image, self.inputs))
        # True labels are a placeholder that is neither an image nor a scalar.
        training = self._dependent(each for each in self.inputs if each.shape != () and not is_image(each))
        return [each for each in tensors if node_of(each.node) in dependents - training]

    def _dependent(self, tensors: Iterable[Tensor]) -> set[str]:
        return dependent(self._definition, {node_of(tensor.node) for tensor in tensors})

    def _constants(self, image: Tensor, needed: set[str], notes: list[str]) -> dict[str, bool | int | float]:
        constants: dict[str, bool | int | float] = {}
        for tensor in self.inputs:
            if tensor == image or node_of(tensor.node) not in needed:
                continue
            if tensor.shape not in ((), None):
                notes.append(f"the output also depends on {tensor}: set input.constants by hand")
                continue
            value, reason = _inference_value(tensor)
            constants[tensor.name] = value
            notes.append(f"{tensor.name} ({tensor.dtype}) is fed {str(value).lower()}: {reason}")
        return constants

    def _uses(self, node: str) -> list[Step]:
        def step(operation: Any) -> Step:
            constants = [tf.get_static_value(each) for each in operation.inputs if each.name != node]
            if operation.type.startswith("FusedBatchNorm") and all(each is not None for each in constants[2:]):
                constants = [np.concatenate(constants[2:])]
            outputs = [each.name for each in operation.outputs]
            return Step(operation.type, [node], outputs, constants[0] if constants else None)

        return [step(each) for each in self._graph.get_tensor_by_name(node).consumers()]


def _inference_value(tensor: Tensor) -> tuple[bool | float, str]:
    """Returns the value of a scalar placeholder for inference, and the reason."""
    name = tensor.name.lower()
    if tensor.dtype == "bool":
        return False, "training behaviour, such as dropout, is switched off"
    if "drop" in name or "rate" in name:
        return 0, "nothing is dropped"
    if "keep" in name:
        return 1, "everything is kept"
    return 1, "guessed, because its name gives no hint"
