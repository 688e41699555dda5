"""Finds the input and output of a third-party graph among unused placeholders and training operations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.graph_session import error_summary
from cloud.engines.tensorflow.graphdef import dependent, node_of, reachable
from cloud.engines.tensorflow.runtime import tf
from shared.inference.errors import EngineError
from shared.models.manifest import OutputKind

_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_IMAGE_DTYPES = ("uint8", "int32", "float16", "float32")
_ID_DTYPES = ("uint8", "int8", "int16", "uint16", "int32", "int64")
_OUTPUT_NAMES = ("prediction", "output", "semantic", "argmax", "softmax", "scores", "logits", "mask", "classes")
_RGB = 3
_IMAGE_SCORES_RANK, _OBJECT_SCORES_RANK = 2, 3  # The scores of an image are N×C, those of objects N×A×C.
_CORNERS = 4
_PASS_THROUGH = ("Identity", "Cast", "Squeeze", "ExpandDims", "Reshape", "StopGradient", "Snapshot")
_BYTE_RANGE = 16.0  # A subtracted mean or a divisor above this is meant for pixels of 0..255.


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model."""

    name: str  # The name in the manifest, such as a SavedModel signature's key.
    node: str  # The tensor in the graph, with its ":0".
    dtype: str
    shape: tuple[int | None, ...] | None  # None if the rank is unknown.

    def __str__(self) -> str:
        sides = "any shape" if self.shape is None else "×".join("?" if s is None else str(s) for s in self.shape)
        return f"{self.name} {self.dtype} {sides or 'scalar'}"


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """The input and output that were found, and everything else that the output depends on."""

    image: Tensor
    output: Tensor
    boxes: Tensor | None  # A detector's boxes; its `output` is the scores.
    kind: OutputKind
    classes: int | None  # The number of classes; None if unknown.
    constants: dict[str, bool | int | float]  # The values of other placeholders by name.
    unused: tuple[Tensor, ...]  # Placeholders that the output does not depend on.
    others: tuple[Tensor, ...]  # Possible outputs that were not chosen.
    guesses: tuple[str, ...]


class GraphAnalysis:
    """A graph with inferred shapes.

    `inputs` and `outputs` are the tensors by their names in a signature. In a bare graph they are empty: every placeholder is
    an input, and every tensor may be the output.
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
            raise EngineError(path, f"TensorFlow cannot load this graph: {error_summary(error)}") from error
        self._order = {operation.name: place for place, operation in enumerate(self._graph.get_operations())}
        placeholders = {op.name: op.outputs[0].name for op in self._graph.get_operations() if op.type in _PLACEHOLDERS}
        bare = {node: node for node in placeholders.values()}  # A bare graph's inputs are named as tensors, "input:0".
        self.placeholders = [self._tensor(name, node) for name, node in (inputs or bare).items()]
        self._named_outputs = [self._tensor(name, node) for name, node in (outputs or {}).items()]

    def interface(self) -> ModelInterface:
        """Finds the input and the output.

        Raises:
            EngineError: no placeholder can be an image, or no tensor can be a mask, scores or boxes.
        """
        images = [tensor for tensor in self.placeholders if _is_image(tensor)]
        if not images:
            inputs = format_tensors(self.placeholders)
            raise EngineError(self._path, f"takes no image (N×H×W×3): its inputs are {inputs}")
        ranked = sorted(self._pixel_outputs(images), key=self._rank, reverse=True)
        boxes = None
        if not ranked:
            ranked, boxes = self._image_or_object_outputs(images)
        if not ranked:
            ranked = sorted(self._pixel_outputs(images, inner=True), key=self._rank, reverse=True)
        if not ranked:
            raise EngineError(
                self._path,
                "gives no class ids (N×H×W) or scores (N×H×W×C) of pixels, no scores of an image (N×C), and no boxes "
                "(N×A×4) with scores (N×A×C): write the manifest by hand, with task tensors",
            )
        output = ranked[0]
        needed = reachable(self._definition, [each.node for each in (output, boxes) if each])
        used = [tensor for tensor in images if node_of(tensor.node) in needed]
        image = max(used, key=lambda tensor: (len(tensor.shape or ()), tensor.shape is not None))
        notes: list[str] = []
        kind = self._kind(output)
        if boxes is not None:
            notes.append(f"{boxes.name} is assumed to be x1, y1, x2, y2 in pixels of the input (box_format)")
        if len(used) > 1:
            notes.append(f"{len(used)} inputs can be an image ({format_tensors(used)}): took {image.name}")
        if len(ranked) > 1:
            notes.append(f"other outputs are possible: {format_tensors(ranked[1:4])}; took {output.name}")
        return ModelInterface(
            image=image,
            output=output,
            boxes=boxes,
            kind=kind,
            classes=self._classes(output, kind),
            constants=self._constants(image, needed, notes),
            unused=tuple(tensor for tensor in self.placeholders if node_of(tensor.node) not in needed),
            others=tuple(ranked[1:]),
            guesses=tuple(notes),
        )

    def scale(self, image: Tensor) -> tuple[float, str]:
        """Returns the factor from pixels 0..255 to the input's range, and the reason."""
        if not image.dtype.startswith("float"):
            return 1.0, f"{image.name} takes {image.dtype}: pixels are fed unchanged"
        constant = self._first_constant(image.node)
        if constant is None:
            return 1 / 255, "nothing in the graph shows the range of its input: 0..1 is guessed (input.scale)"
        verb, value = constant
        takes_bytes = value <= 1 / _BYTE_RANGE if verb == "multiplies" else value >= _BYTE_RANGE
        if takes_bytes:
            return 1.0, f"the graph {verb} its input by {value:g}: it is fed 0..255 (input.scale)"
        return 1 / 255, f"the graph {verb} its input by {value:g}: 0..1 is guessed (input.scale)"

    def random_operations(self, output: Tensor) -> list[str]:
        """Returns the operations before the output that generate random numbers, such as active dropout."""
        needed = reachable(self._definition, [output.node])
        return [node.name for node in self._definition.node if node.name in needed and "Random" in node.op]

    def _tensor(self, name: str, node: str) -> Tensor:
        tensor = self._graph.get_tensor_by_name(node)
        rank = tensor.shape.rank
        return Tensor(name, node, tensor.dtype.name, None if rank is None else tuple(tensor.shape.as_list()))

    def _pixel_outputs(self, images: Iterable[Tensor], *, inner: bool = False) -> list[Tensor]:
        """Returns the possible outputs per pixel; in a bare graph, the last tensors, or with `inner` the others."""
        dependents = self._dependent(images)
        if self._named_outputs:
            return [tensor for tensor in self._named_outputs if self._fits(tensor, dependents)]
        found: list[Tensor] = []
        for operation in self._graph.get_operations():
            if operation.type in (*_PLACEHOLDERS, "Const") or not operation.outputs:
                continue
            tensor = self._tensor(operation.outputs[0].name, operation.outputs[0].name)
            is_end = not operation.outputs[0].consumers()
            if (tensor.dtype in _ID_DTYPES and not is_end if inner else is_end) and self._fits(tensor, dependents):
                found.append(tensor)
        training = self._training_operations()
        return [tensor for tensor in found if node_of(tensor.node) not in training]

    def _image_or_object_outputs(self, images: Iterable[Tensor]) -> tuple[list[Tensor], Tensor | None]:
        """Returns the scores N×A×C and the boxes N×A×4 of a detector, else the scores N×C of an image and None.

        Several possible scores are sorted by likelihood.
        """
        dependents, training = self._dependent(images), self._training_operations()
        ends = self._named_outputs or [
            self._tensor(operation.outputs[0].name, operation.outputs[0].name)
            for operation in self._graph.get_operations()
            if operation.outputs and not operation.outputs[0].consumers()
        ]
        fitting = [
            tensor
            for tensor in ends
            if tensor.dtype.startswith("float")
            and node_of(tensor.node) in dependents
            and node_of(tensor.node) not in training
        ]
        ranked = sorted(fitting, key=self._rank, reverse=True)
        per_object = [each for each in ranked if each.shape is not None and len(each.shape) == _OBJECT_SCORES_RANK]
        # The scores of four classes have the shape of boxes, so the name decides.
        per_object.sort(key=lambda tensor: "box" not in tensor.name.lower())
        for boxes in per_object:
            scores = [each for each in per_object if each != boxes and (each.shape or ())[1] == (boxes.shape or ())[1]]
            if scores and (boxes.shape or ())[-1] == _CORNERS:
                return scores, boxes
        return [each for each in ranked if each.shape is not None and len(each.shape) == _IMAGE_SCORES_RANK], None

    def _fits(self, tensor: Tensor, dependents: set[str]) -> bool:
        """Returns whether it has the shape and dtype of class ids or scores, and is one of the dependents."""
        is_ids = tensor.dtype in _ID_DTYPES
        ranks = (2, 3, 4) if is_ids else (4,)
        if not is_ids and not tensor.dtype.startswith("float"):
            return False
        if tensor.shape is not None and len(tensor.shape) not in ranks:
            return False
        if is_ids and tensor.shape is not None and len(tensor.shape) == 4 and tensor.shape[3] != 1:  # noqa: PLR2004  N, H, W, C.
            return False
        return node_of(tensor.node) in dependents

    def _training_operations(self) -> set[str]:
        """Returns the operations that depend on the truth: a placeholder that is neither an image nor a scalar."""
        return self._dependent(each for each in self.placeholders if each.shape != () and not _is_image(each))

    def _dependent(self, tensors: Iterable[Tensor]) -> set[str]:
        return dependent(self._definition, {node_of(tensor.node) for tensor in tensors})

    def _rank(self, tensor: Tensor) -> tuple[bool, bool, bool, bool, int]:
        """Prefers class ids, a typical output name, a known shape, an arg max, and a late position in the graph."""
        named = any(word in tensor.name.lower() for word in _OUTPUT_NAMES)
        is_ids = self._kind(tensor) is OutputKind.CLASS_IDS
        is_arg_max = self._graph.get_tensor_by_name(tensor.node).op.type == "ArgMax"
        return is_ids, named, tensor.shape is not None, is_arg_max, self._order.get(node_of(tensor.node), 0)

    def _kind(self, tensor: Tensor) -> OutputKind:
        rank = None if tensor.shape is None else len(tensor.shape)
        if rank in (_IMAGE_SCORES_RANK, _OBJECT_SCORES_RANK) and tensor.dtype not in _ID_DTYPES:
            operation = self._operation_before(tensor)
            return OutputKind.PROBABILITIES if operation.type in ("Softmax", "Sigmoid") else OutputKind.LOGITS
        if tensor.dtype in _ID_DTYPES or (tensor.shape is not None and tensor.shape[-1] == 1):
            return OutputKind.CLASS_IDS
        return OutputKind.SCORES

    def _operation_before(self, tensor: Tensor) -> Any:
        """Returns the operation that computes a tensor's values, before casts and changes of shape."""
        operation = self._graph.get_tensor_by_name(tensor.node).op
        while operation.type in _PASS_THROUGH and operation.inputs:
            operation = operation.inputs[0].op
        return operation

    def _classes(self, output: Tensor, kind: OutputKind) -> int | None:
        """Returns the number of classes: the channels of the scores, or of the input of the last arg max."""
        if kind is not OutputKind.CLASS_IDS:
            return output.shape[-1] if output.shape else None
        operation = self._operation_before(output)
        if operation.type != "ArgMax":
            return None
        scores = operation.inputs[0].shape
        return None if scores.rank is None else scores.as_list()[-1]

    def _constants(self, image: Tensor, needed: set[str], notes: list[str]) -> dict[str, bool | int | float]:
        constants: dict[str, bool | int | float] = {}
        for tensor in self.placeholders:
            if tensor == image or node_of(tensor.node) not in needed:
                continue
            if tensor.shape not in ((), None):
                notes.append(f"the output also depends on {tensor}: set input.constants by hand")
                continue
            value, reason = _inference_value(tensor)
            constants[tensor.name] = value
            notes.append(f"{tensor.name} ({tensor.dtype}) is fed {str(value).lower()}: {reason}")
        return constants

    def _first_constant(self, node: str) -> tuple[str, float] | None:
        """Returns the first arithmetic with a constant after the input: "multiplies", "divides" or "shifts", and the value."""
        tensor = self._graph.get_tensor_by_name(node)
        for _ in range(16):
            consumers = [op for op in tensor.consumers() if op.type not in ("Shape", "NoOp")]
            if len(consumers) != 1:
                return None
            (operation,) = consumers
            if verb := _ARITHMETIC.get(operation.type):
                others = [each for each in operation.inputs if each is not tensor]
                value = tf.get_static_value(others[0]) if others else None
                return None if value is None else (verb, float(abs(value).max()))
            if operation.type not in (*_PASS_THROUGH, "ResizeBilinear", "Pad", "MirrorPad", "ReverseV2"):
                return None
            tensor = operation.outputs[0]
        return None


_ARITHMETIC = {"Mul": "multiplies", "RealDiv": "divides", "Div": "divides"} | dict.fromkeys(
    ("Sub", "Add", "AddV2", "BiasAdd"), "shifts"
)


def format_tensors(tensors: Iterable[Tensor]) -> str:
    """Returns a list of tensors as text."""
    return "; ".join(str(tensor) for tensor in tensors) or "none"


def _is_image(tensor: Tensor) -> bool:
    if tensor.dtype not in _IMAGE_DTYPES:
        return False
    return tensor.shape is None or (len(tensor.shape) == 4 and tensor.shape[3] in (_RGB, None))  # noqa: PLR2004  N, H, W, C.


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
