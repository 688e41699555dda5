"""What a foreign graph takes and gives: the true input and output among spare placeholders and training's leftovers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.graph_session import error_summary
from cloud.engines.tensorflow.graphdef import dependent, node_of, reachable
from cloud.engines.tensorflow.library import tf
from cloud.models.manifest import OutputKind

_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_PICTURE_TYPES = ("uint8", "int32", "float16", "float32")
_ID_TYPES = ("uint8", "int8", "int16", "uint16", "int32", "int64")
_OUTPUT_NAMES = ("prediction", "output", "semantic", "argmax", "softmax", "scores", "logits", "mask", "classes")
_RGB = 3
_OF_PICTURES, _OF_THINGS = 2, 3  # Dimensions of the scores N×C of pictures, and of those N×A×C of things in them.
_CORNERS = 4
_PASSING = ("Identity", "Cast", "Squeeze", "ExpandDims", "Reshape", "StopGradient", "Snapshot")
_BYTE_LIKE = 16.0  # A mean subtracted, or a divisor, above this is meant for pixels of 0..255.


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a graph, as a user names it."""

    name: str  # As the manifest names it: of a SavedModel the signature's key.
    node: str  # The tensor in the graph, with its ":0".
    dtype: str
    shape: tuple[int | None, ...] | None  # None: not even the rank is known.

    def __str__(self) -> str:
        sides = "any shape" if self.shape is None else "×".join("?" if s is None else str(s) for s in self.shape)
        return f"{self.name} {self.dtype} {sides or 'scalar'}"


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """The input and output that were found, and what else the output depends on."""

    picture: Tensor
    answer: Tensor
    boxes: Tensor | None  # Of a detector, whose answer is the scores.
    kind: OutputKind
    classes: int | None  # How many classes there are, where the graph tells.
    constants: dict[str, bool | int | float]  # What to feed to other placeholders, by their names.
    spare: tuple[Tensor, ...]  # Placeholders that the output does not depend on.
    others: tuple[Tensor, ...]  # Answers that were not chosen.
    guesses: tuple[str, ...]


class GraphAnalysis:
    """A graph with its shapes inferred.

    `inputs`, `outputs`: tensors by the names that users know, as a signature has them; empty for a bare graph, where
    every placeholder is an input and every tensor may be the output.
    """

    def __init__(
        self, graph: Any, path: Path, inputs: Mapping[str, str] | None = None, outputs: Mapping[str, str] | None = None
    ) -> None:
        """Infer the shapes of `graph` (a GraphDef).

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
        self.placeholders = [self._tensor(name, node) for name, node in (inputs or _full(placeholders)).items()]
        self._named_outputs = [self._tensor(name, node) for name, node in (outputs or {}).items()]

    def ends(self) -> ModelInterface:
        """Find the input and the output.

        Raises:
            EngineError: no tensor of the graph looks like a picture, or none like a mask, scores or boxes of one.
        """
        pictures = [tensor for tensor in self.placeholders if _is_picture(tensor)]
        if not pictures:
            raise EngineError(self._path, f"takes no picture (N×H×W×3): its inputs are {_listed(self.placeholders)}")
        ranked = sorted(self._answers(pictures), key=self._rank, reverse=True)
        boxes = None
        if not ranked:  # It says nothing of pixels, then: of the whole picture, or of things in it.
            ranked, boxes = self._whole_answers(pictures)
        if not ranked:
            ranked = sorted(self._answers(pictures, inner=True), key=self._rank, reverse=True)
        if not ranked:
            raise EngineError(
                self._path,
                "gives no class ids (N×H×W) and no scores (N×H×W×C) for a picture's pixels, no scores of a whole one (N×C) "
                "and no boxes (N×A×4) with theirs (N×A×C): write the manifest by hand, with task tensors",
            )
        answer = ranked[0]
        needed = reachable(self._definition, [each.node for each in (answer, boxes) if each])
        used = [tensor for tensor in pictures if node_of(tensor.node) in needed]
        picture = max(used, key=lambda tensor: (len(tensor.shape or ()), tensor.shape is not None))
        notes: list[str] = []
        kind = self._kind(answer)
        if boxes is not None:
            notes.append(f"{boxes.name} is taken for x1, y1, x2, y2 in pixels of the input (box_format)")
        if len(used) > 1:
            notes.append(f"{len(used)} inputs look like a picture ({_listed(used)}): took {picture.name}")
        if len(ranked) > 1:
            notes.append(f"other outputs are possible: {_listed(ranked[1:4])}; took {answer.name}")
        return ModelInterface(
            picture=picture,
            answer=answer,
            boxes=boxes,
            kind=kind,
            classes=self._classes(answer, kind),
            constants=self._constants(picture, needed, notes),
            spare=tuple(tensor for tensor in self.placeholders if node_of(tensor.node) not in needed),
            others=tuple(ranked[1:]),
            guesses=tuple(notes),
        )

    def scale(self, picture: Tensor) -> tuple[float, str]:
        """What to multiply pixels of 0..255 with for this input, and how that was found out."""
        if not picture.dtype.startswith("float"):
            return 1.0, f"{picture.name} takes {picture.dtype}: pixels are fed as they are"
        constant = self._first_constant(picture.node)
        if constant is None:
            return 1 / 255, "nothing in the graph tells the range of its input: 0..1 is guessed (input.scale)"
        kind, value = constant
        if (kind == "divides" and value >= _BYTE_LIKE) or (kind == "multiplies" and value <= 1 / _BYTE_LIKE):
            return 1.0, f"the graph {kind} its input by {value:g}: it is fed 0..255 (input.scale)"
        if kind == "shifts" and value >= _BYTE_LIKE:
            return 1.0, f"the graph {kind} its input by {value:g}: it is fed 0..255 (input.scale)"
        return 1 / 255, f"the graph {kind} its input by {value:g}: 0..1 is guessed (input.scale)"

    def random_operations(self, answer: Tensor) -> list[str]:
        """The operations that draw random numbers on the way to the output: dropout or noise left on."""
        needed = reachable(self._definition, [answer.node])
        return [node.name for node in self._definition.node if node.name in needed and "Random" in node.op]

    def _tensor(self, name: str, node: str) -> Tensor:
        tensor = self._graph.get_tensor_by_name(node)
        rank = tensor.shape.rank
        return Tensor(name, node, tensor.dtype.name, None if rank is None else tuple(tensor.shape.as_list()))

    def _answers(self, pictures: Iterable[Tensor], *, inner: bool = False) -> list[Tensor]:
        """Every tensor that might be an answer for pixels; of a bare graph the ends, or whatever fits within it."""
        seeing = self._dependent(pictures)
        if self._named_outputs:
            return [tensor for tensor in self._named_outputs if self._fits(tensor, seeing)]
        found: list[Tensor] = []
        for operation in self._graph.get_operations():
            if operation.type in (*_PLACEHOLDERS, "Const") or not operation.outputs:
                continue
            tensor = self._tensor(operation.outputs[0].name, operation.outputs[0].name)
            is_end = not operation.outputs[0].consumers()
            if (tensor.dtype in _ID_TYPES and not is_end if inner else is_end) and self._fits(tensor, seeing):
                found.append(tensor)
        trainings = self._trainings()
        return [tensor for tensor in found if node_of(tensor.node) not in trainings]

    def _whole_answers(self, pictures: Iterable[Tensor]) -> tuple[list[Tensor], Tensor | None]:
        """The scores N×C of whole pictures, likeliest first, and None; or the scores N×A×C of boxes, and these, N×A×4."""
        seeing, trainings = self._dependent(pictures), self._trainings()
        ends = self._named_outputs or [
            self._tensor(operation.outputs[0].name, operation.outputs[0].name)
            for operation in self._graph.get_operations()
            if operation.outputs and not operation.outputs[0].consumers()
        ]
        fitting = [
            tensor
            for tensor in ends
            if tensor.dtype.startswith("float")
            and node_of(tensor.node) in seeing
            and node_of(tensor.node) not in trainings
        ]
        ranked = sorted(fitting, key=self._rank, reverse=True)
        of_things = [tensor for tensor in ranked if tensor.shape is not None and len(tensor.shape) == _OF_THINGS]
        # Four classes look like boxes too: a name decides.
        of_things.sort(key=lambda tensor: "box" not in tensor.name.lower())
        for boxes in of_things:
            scores = [each for each in of_things if each != boxes and (each.shape or ())[1] == (boxes.shape or ())[1]]
            if scores and (boxes.shape or ())[-1] == _CORNERS:
                return scores, boxes
        return [tensor for tensor in ranked if tensor.shape is not None and len(tensor.shape) == _OF_PICTURES], None

    def _fits(self, tensor: Tensor, seeing: set[str]) -> bool:
        """Whether it has the shape and type of class ids or scores, and depends on a picture as those operations do."""
        is_ids = tensor.dtype in _ID_TYPES
        ranks = (2, 3, 4) if is_ids else (4,)
        if not is_ids and not tensor.dtype.startswith("float"):
            return False
        if tensor.shape is not None and len(tensor.shape) not in ranks:
            return False
        if is_ids and tensor.shape is not None and len(tensor.shape) == 4 and tensor.shape[3] != 1:  # noqa: PLR2004  N, H, W, C.
            return False
        return node_of(tensor.node) in seeing

    def _trainings(self) -> set[str]:
        """The operations that depend on the truth too: on a placeholder that is neither a picture nor a switch."""
        return self._dependent(each for each in self.placeholders if each.shape != () and not _is_picture(each))

    def _dependent(self, tensors: Iterable[Tensor]) -> set[str]:
        return dependent(self._definition, {node_of(tensor.node) for tensor in tensors})

    def _rank(self, tensor: Tensor) -> tuple[bool, bool, bool, bool, int]:
        """Class ids before scores, named as outputs are, of known shape, an arg max itself, and last in the graph."""
        named = any(word in tensor.name.lower() for word in _OUTPUT_NAMES)
        is_ids = self._kind(tensor) is OutputKind.CLASS_IDS
        is_choice = self._graph.get_tensor_by_name(tensor.node).op.type == "ArgMax"
        return is_ids, named, tensor.shape is not None, is_choice, self._order.get(node_of(tensor.node), 0)

    def _kind(self, tensor: Tensor) -> OutputKind:
        rank = None if tensor.shape is None else len(tensor.shape)
        if rank in (_OF_PICTURES, _OF_THINGS) and tensor.dtype not in _ID_TYPES:
            operation = self._graph.get_tensor_by_name(tensor.node).op
            while operation.type in _PASSING and operation.inputs:
                operation = operation.inputs[0].op
            return OutputKind.PROBABILITIES if operation.type in ("Softmax", "Sigmoid") else OutputKind.LOGITS
        if tensor.dtype in _ID_TYPES or (tensor.shape is not None and tensor.shape[-1] == 1):
            return OutputKind.CLASS_IDS
        return OutputKind.SCORES

    def _classes(self, answer: Tensor, kind: OutputKind) -> int | None:
        """The number of classes: the scores' channels, or what the arg max before the answer chooses from."""
        if kind is not OutputKind.CLASS_IDS:
            return answer.shape[-1] if answer.shape else None
        operation = self._graph.get_tensor_by_name(answer.node).op
        while operation.type in _PASSING and operation.inputs:
            operation = operation.inputs[0].op
        if operation.type != "ArgMax":
            return None
        scores = operation.inputs[0].shape
        return None if scores.rank is None else scores.as_list()[-1]

    def _constants(self, picture: Tensor, needed: set[str], notes: list[str]) -> dict[str, bool | int | float]:
        constants: dict[str, bool | int | float] = {}
        for tensor in self.placeholders:
            if tensor == picture or node_of(tensor.node) not in needed:
                continue
            if tensor.shape not in ((), None):
                notes.append(f"the answer also depends on {tensor}: set input.constants by hand")
                continue
            value, reason = _switch(tensor)
            constants[tensor.name] = value
            notes.append(f"{tensor.name} ({tensor.dtype}) is fed {str(value).lower()}: {reason}")
        return constants

    def _first_constant(self, node: str) -> tuple[str, float] | None:
        """The first arithmetic with a constant that every pixel meets: "multiplies", "divides" or "shifts", and by what."""
        tensor = self._graph.get_tensor_by_name(node)
        for _ in range(16):
            consumers = [op for op in tensor.consumers() if op.type not in ("Shape", "NoOp")]
            if len(consumers) != 1:
                return None
            (operation,) = consumers
            kind = {"Mul": "multiplies", "RealDiv": "divides", "Div": "divides"}.get(operation.type)
            kind = kind or ("shifts" if operation.type in ("Sub", "Add", "AddV2", "BiasAdd") else None)
            if kind is not None:
                others = [each for each in operation.inputs if each is not tensor]
                value = tf.get_static_value(others[0]) if others else None
                return None if value is None else (kind, float(abs(value).max()))
            if operation.type not in (*_PASSING, "ResizeBilinear", "Pad", "MirrorPad", "ReverseV2"):
                return None
            tensor = operation.outputs[0]
        return None


def _is_picture(tensor: Tensor) -> bool:
    if tensor.dtype not in _PICTURE_TYPES:
        return False
    return tensor.shape is None or (len(tensor.shape) == 4 and tensor.shape[3] in (_RGB, None))  # noqa: PLR2004  N, H, W, C.


def _switch(tensor: Tensor) -> tuple[bool | float, str]:
    """What a scalar placeholder is to be fed for inference, and why."""
    name = tensor.name.lower()
    if tensor.dtype == "bool":
        return False, "a switch of training, such as dropout, is left off"
    if "drop" in name or "rate" in name:
        return 0, "nothing is dropped"
    if "keep" in name:
        return 1, "all is kept"
    return 1, "guessed, as its name tells nothing"


def _full(placeholders: Mapping[str, str]) -> dict[str, str]:
    """A bare graph's placeholders are named as tensors, "input:0"."""
    return {node: node for node in placeholders.values()}


def _listed(tensors: Iterable[Tensor]) -> str:
    return "; ".join(str(tensor) for tensor in tensors) or "none"
