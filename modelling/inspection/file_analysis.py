"""Finds the input and output of formats that declare them: ONNX, TensorFlow Lite and OpenVINO."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.table import ENGINES
from modelling.inspection.graph_analysis import ModelInterface, Tensor, format_tensors
from shared import registry
from shared.inference.errors import EngineError
from shared.inference.tensor_binding import TensorInfo
from shared.models.manifest import MAX_SIDE, OutputKind

InputsAndOutputs = tuple[list[Tensor], list[Tensor]]

IR_NAME = "model.xml"  # Equals cloud.engines.openvino.graph.IR_NAME, whose module imports OpenVINO.
_RGB = 3
_CORNERS = 4
_MAP_RANK = 4  # N×H×W×C or N×C×H×W
_IMAGE_DTYPES = ("uint8", "int32", "float16", "float32")


class FileAnalysis:
    """Has the methods of `modelling.inspection.graph_analysis.GraphAnalysis`, but knows the declared tensors only."""

    def __init__(self, path: Path, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        self._path = path
        self._inputs, self._outputs = list(inputs), list(outputs)

    def interface(self) -> ModelInterface:
        """Finds the input and the output.

        Raises:
            EngineError: no input is an image, or no output is a mask, scores or boxes.
        """
        images = [each for each in map(_as_image, self._inputs) if each is not None]
        if not images:
            raise EngineError(
                self._path, f"takes no image (N×H×W×3 or N×3×H×W): its inputs are {format_tensors(self._inputs)}"
            )
        image = images[0]
        other_inputs = [each for each in self._inputs if each.name != image.name]
        boxes, scores = self._detection()
        ranked = [scores] if boxes and scores else sorted(self._outputs, key=_rank, reverse=True)
        kind = None if not ranked else OutputKind.LOGITS if boxes else _kind(ranked[0])
        if kind is None:
            raise EngineError(
                self._path, f"gives no class ids, scores or boxes: its outputs are {format_tensors(self._outputs)}"
            )
        guesses = []
        if len(ranked) > 1:
            guesses.append(f"other outputs are possible: {format_tensors(ranked[1:4])}; took {ranked[0].name}")
        if kind is OutputKind.LOGITS:
            guesses.append(f"{ranked[0].name} is assumed to be logits: if it holds probabilities, set kind")
        if other_inputs:
            guesses.append(f"also needs {format_tensors(other_inputs)}: set input.constants by hand")
        return ModelInterface(
            image=image,
            output=ranked[0],
            boxes=boxes,
            kind=kind,
            classes=None if kind is OutputKind.CLASS_IDS else _channels(ranked[0], kind),
            constants={},
            unused=(),
            others=tuple(ranked[1:]),
            guesses=tuple(guesses),
        )

    def scale(self, image: Tensor) -> tuple[float, str]:
        """Returns the factor from pixels 0..255 to the input's range, and the reason."""
        if not image.dtype.startswith("float"):
            return 1.0, f"{image.name} takes {image.dtype}: pixels are fed unchanged"
        return 1 / 255, "the file does not declare the range of its input: 0..1 is guessed (input.scale, mean, std)"

    def random_operations(self, _output: Tensor) -> list[str]:
        """Returns nothing, because the operations are unknown; two runs on the same noise reveal random ones."""
        return []

    def _detection(self) -> tuple[Tensor | None, Tensor | None]:
        """Returns a detector's boxes, N×A×4, and its scores, N×A×C."""
        threes = [each for each in self._outputs if each.shape is not None and len(each.shape) == 3]  # noqa: PLR2004
        boxes = next(
            (each for each in threes if each.shape and each.shape[2] == _CORNERS and "score" not in each.name), None
        )
        scores = next((each for each in threes if each is not boxes), None)
        return (boxes, scores) if boxes and scores else (None, None)


def onnx_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of an ONNX file."""
    engine = import_module("shared.inference.onnxruntime")
    return _tensors(*engine.tensors_of(engine.open_session(path)))


def tflite_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of a TensorFlow Lite file."""
    engine = import_module("shared.inference.tflite")
    return _tensors(*engine.tensors_of(engine.open_model(path)))


def openvino_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of a folder with OpenVINO's model.xml."""
    graph = import_module("cloud.engines.openvino.graph")
    heads = import_module("cloud.engines.openvino.heads")
    try:
        model = import_module("cloud.engines.openvino.runtime").core().read_model(path / IR_NAME)
    except RuntimeError as error:
        raise EngineError(path, f"OpenVINO cannot load this file: {graph.error_summary(error)}") from error

    def tensor(each: Any) -> Tensor:
        name, dtype = each.get_any_name(), each.get_element_type().to_dtype().name
        return Tensor(name, name, dtype, _sides(heads.shape_of(each)))

    return [tensor(each) for each in model.inputs], [tensor(each) for each in model.outputs]


def torchscript_tensors(path: Path, size: tuple[int, int] | None) -> InputsAndOutputs:
    """Runs a TorchScript file on a black image of `size`, height and width, to find its inputs and outputs."""
    if size is None:
        raise EngineError(path, "is TorchScript, which declares no input size: give it, as --size 512x1024")
    if max(size) > MAX_SIDE:
        raise EngineError(path, f"cannot take {size[0]}×{size[1]} pixels: give a --size of at most {MAX_SIDE} a side")
    registry.load("engine", ENGINES, "torchscript")
    return _tensors(*import_module("cloud.engines.torchscript").tensors_of(path, size))


READERS: dict[str, Callable[[Path], InputsAndOutputs]] = {
    "onnx": onnx_tensors,
    "tflite": tflite_tensors,
    "openvino": openvino_tensors,
}


def _tensors(*groups: dict[str, TensorInfo]) -> InputsAndOutputs:
    inputs, outputs = (
        [
            Tensor(each.name, each.name, each.dtype or "unsupported", each.shape)
            for each in dict.fromkeys(group.values())
        ]
        for group in groups
    )
    return inputs, outputs


def _as_image(tensor: Tensor) -> Tensor | None:
    """Returns an image tensor with its shape as N×H×W×3, in either axis order; None for any other tensor."""
    shape = tensor.shape
    if shape is None or len(shape) != _MAP_RANK or tensor.dtype not in _IMAGE_DTYPES:
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
    """Ranks class ids before scores of pixels, and these before scores of an image."""
    return _kind(tensor) is not None, not tensor.dtype.startswith("float"), len(tensor.shape or ())


def _channels(tensor: Tensor, kind: OutputKind) -> int | None:
    """Returns the number of classes: for a map, the smaller of the two dimensions that may be the channels."""
    shape = tensor.shape or ()
    if kind is OutputKind.SCORES:
        return min((side for side in (shape[1], shape[3]) if side), default=None)
    return shape[-1]


def _sides(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape is None else tuple(shape)
