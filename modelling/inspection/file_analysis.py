"""What a model file takes and gives where it tells its tensors: ONNX, TensorFlow Lite, OpenVINO's own."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import EngineError
from cloud.models.manifest import OutputKind
from modelling.inspection.graph_analysis import ModelInterface, Tensor

Tensors = tuple[list[Tensor], list[Tensor]]  # Inputs, outputs.

IR_NAME = "model.xml"  # As cloud.engines.openvino.graph has it, which imports OpenVINO.
_RGB = 3
_CORNERS = 4
_MAP_RANK = 4  # N×H×W×C or N×C×H×W
_PICTURE_TYPES = ("uint8", "int32", "float16", "float32")


class FileAnalysis:
    """A file's tensors, as `modelling.inspection.graph_analysis.GraphAnalysis` tells a graph's; what is inside stays unseen."""

    def __init__(self, path: Path, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        self._path = path
        self._inputs, self._outputs = list(inputs), list(outputs)

    def ends(self) -> ModelInterface:
        """Find the input and the output.

        Raises:
            EngineError: no input is a picture, or no output a mask, scores or boxes.
        """
        pictures = [each for each in map(_as_picture, self._inputs) if each is not None]
        if not pictures:
            raise EngineError(
                self._path, f"takes no picture (N×H×W×3 or N×3×H×W): its inputs are {_listed(self._inputs)}"
            )
        picture = pictures[0]
        spare = [each for each in self._inputs if each.name != picture.name]
        boxes, scores = self._detection()
        ranked = [scores] if boxes and scores else sorted(self._outputs, key=_rank, reverse=True)
        kind = None if not ranked else OutputKind.LOGITS if boxes else _kind(ranked[0])
        if kind is None:
            raise EngineError(
                self._path, f"gives no class ids, scores or boxes: its outputs are {_listed(self._outputs)}"
            )
        guesses = []
        if len(ranked) > 1:
            guesses.append(f"other outputs are possible: {_listed(ranked[1:4])}; took {ranked[0].name}")
        if kind is OutputKind.LOGITS:
            guesses.append(f"{ranked[0].name} is taken for logits: where they are probabilities, set kind")
        if spare:
            guesses.append(f"also wants {_listed(spare)}: set input.constants by hand")
        return ModelInterface(
            picture=picture,
            answer=ranked[0],
            boxes=boxes,
            kind=kind,
            classes=None if kind is OutputKind.CLASS_IDS else _channels(ranked[0], kind),
            constants={},
            spare=(),
            others=tuple(ranked[1:]),
            guesses=tuple(guesses),
        )

    def scale(self, picture: Tensor) -> tuple[float, str]:
        """What to multiply pixels of 0..255 with for this input, and how that was found out."""
        if not picture.dtype.startswith("float"):
            return 1.0, f"{picture.name} takes {picture.dtype}: pixels are fed as they are"
        return 1 / 255, "the file does not tell the range of its input: 0..1 is guessed (input.scale, mean, std)"

    def random_operations(self, _answer: Tensor) -> list[str]:
        """None that could be seen; two runs on the same noise show what there is."""
        return []

    def _detection(self) -> tuple[Tensor | None, Tensor | None]:
        """A detector's boxes, N×A×4, and its scores, N×A×C."""
        threes = [each for each in self._outputs if each.shape is not None and len(each.shape) == 3]  # noqa: PLR2004
        boxes = next(
            (each for each in threes if each.shape and each.shape[2] == _CORNERS and "score" not in each.name), None
        )
        scores = next((each for each in threes if each is not boxes), None)
        return (boxes, scores) if boxes and scores else (None, None)


def onnx_tensors(path: Path) -> Tensors:
    """Those of an ONNX file."""
    engine = import_module("cloud.engines.onnxruntime")
    session = engine.open_session(path)
    return tuple(  # type: ignore[return-value]  # Of two.
        [Tensor(each.name, each.name, engine.dtype_of(each), tuple(engine.shape_of(each))) for each in ends]
        for ends in (session.get_inputs(), session.get_outputs())
    )


def tflite_tensors(path: Path) -> Tensors:
    """Those of a TensorFlow Lite file."""
    engine = import_module("cloud.engines.tflite")
    model = engine.open_model(path)
    return tuple(  # type: ignore[return-value]  # Of two.
        [
            Tensor(each["name"], each["name"], np.dtype(each["dtype"]).name, _sides(engine.shape_of(each)))
            for each in ends
        ]
        for ends in (model.get_input_details(), model.get_output_details())
    )


def openvino_tensors(path: Path) -> Tensors:
    """Those of OpenVINO's model.xml, or of the folder that holds it."""
    graph = import_module("cloud.engines.openvino.graph")
    heads = import_module("cloud.engines.openvino.heads")
    try:
        model = import_module("cloud.engines.openvino.library").core().read_model(path / IR_NAME)
    except RuntimeError as error:
        raise EngineError(path, f"OpenVINO cannot load this file: {graph.error_summary(error)}") from error
    return tuple(  # type: ignore[return-value]  # Of two.
        [
            Tensor(
                each.get_any_name(),
                each.get_any_name(),
                each.get_element_type().to_dtype().name,
                _sides(heads.shape_of(each)),
            )
            for each in ends
        ]
        for ends in (model.inputs, model.outputs)
    )


READERS: dict[str, Callable[[Path], Tensors]] = {
    "onnx": onnx_tensors,
    "tflite": tflite_tensors,
    "openvino": openvino_tensors,
}


def _as_picture(tensor: Tensor) -> Tensor | None:
    """The tensor as N×H×W×3, whichever way it lies; None where it is no picture."""
    shape = tensor.shape
    if shape is None or len(shape) != _MAP_RANK or tensor.dtype not in _PICTURE_TYPES:
        return None
    if shape[3] == _RGB:
        return tensor
    if shape[1] == _RGB:
        return Tensor(tensor.name, tensor.node, tensor.dtype, (shape[0], shape[2], shape[3], _RGB))
    return None


def _kind(tensor: Tensor) -> OutputKind | None:
    rank = None if tensor.shape is None else len(tensor.shape)
    if not tensor.dtype.startswith("float"):
        return OutputKind.CLASS_IDS if rank in (None, 2, 3, _MAP_RANK) else None
    if rank == _MAP_RANK:
        return OutputKind.SCORES
    return OutputKind.LOGITS if rank == 2 else None  # noqa: PLR2004 - N×C


def _rank(tensor: Tensor) -> tuple[bool, bool, int]:
    """Class ids before scores of pixels before those of a picture."""
    return _kind(tensor) is not None, not tensor.dtype.startswith("float"), len(tensor.shape or ())


def _channels(tensor: Tensor, kind: OutputKind) -> int | None:
    """How many classes: of a map the smaller of the two sides that may hold them."""
    shape = tensor.shape or ()
    if kind is OutputKind.SCORES:
        return min((side for side in (shape[1], shape[3]) if side), default=None)
    return shape[-1]


def _sides(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape is None else tuple(shape)


def _listed(tensors: Iterable[Tensor]) -> str:
    return "; ".join(str(tensor) for tensor in tensors) or "none"
