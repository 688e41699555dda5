"""Reads the inputs and outputs of formats that declare them: ONNX, TensorFlow Lite and OpenVINO."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.table import ENGINES
from modelling.inspection.model_tensors import Tensor, format_tensors, last_operation
from shared import registry
from shared.inference.errors import EngineError
from shared.inference.tensor_binding import TensorInfo
from shared.models.manifest import MAX_SIDE

InputsAndOutputs = tuple[list[Tensor], list[Tensor]]

IR_NAME = "model.xml"  # Equals cloud.engines.openvino.graph.IR_NAME, whose module imports OpenVINO.


class FileAnalysis:
    """Has the methods of `modelling.inspection.graph_analysis.GraphAnalysis`, but knows the declared tensors only."""

    def __init__(self, path: Path, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        self._path = path
        self.inputs, self._outputs = list(inputs), list(outputs)

    def outputs(self) -> list[Tensor]:
        """Returns the outputs."""
        return self._outputs

    def inner_outputs(self) -> list[Tensor]:
        """Returns nothing, because a file declares all its outputs."""
        return []

    def used(self, images: Sequence[Tensor], _outputs: Iterable[Tensor]) -> list[Tensor]:
        """Returns the images; a file does not show which one an output depends on."""
        return list(images)

    def other_inputs(
        self, image: Tensor, _outputs: Iterable[Tensor]
    ) -> tuple[dict[str, bool | int | float], tuple[Tensor, ...], list[str]]:
        """Returns no constants, and a note about the inputs that need one."""
        others = [each for each in self.inputs if each.name != image.name]
        return {}, (), [f"also needs {format_tensors(others)}: set input.constants by hand"] if others else []

    def scale(self, image: Tensor) -> tuple[float, str]:
        """Returns the factor from pixels 0..255 to the input's range, and the reason."""
        if not image.dtype.startswith("float"):
            return 1.0, f"{image.name} takes {image.dtype}: pixels are fed unchanged"
        return 1 / 255, "the file does not declare the range of its input: 0..1 is guessed (--normalize)"

    def random_operations(self, _output: Tensor) -> list[str]:
        """Returns nothing, because the operations are unknown; two runs on the same noise reveal random ones."""
        return []


def onnx_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of an ONNX file."""
    engine = import_module("shared.inference.onnxruntime")
    inputs, outputs = engine.tensors_of(engine.open_session(path))
    return _tensors(inputs), _tensors(outputs, _onnx_producer(path))


def tflite_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of a TensorFlow Lite file."""
    engine = import_module("shared.inference.tflite")
    model = engine.open_model(path)
    inputs, outputs = engine.tensors_of(model)
    quantizations = engine.quantizations_of(model)
    return _tensors(inputs, quantizations=quantizations), _tensors(
        outputs, _tflite_producer(path), quantizations=quantizations
    )


def openvino_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of a folder with OpenVINO's model.xml."""
    graph = import_module("cloud.engines.openvino.graph")
    heads = import_module("cloud.engines.openvino.heads")
    try:
        model = import_module("cloud.engines.openvino.runtime").core().read_model(path / IR_NAME)
    except RuntimeError as error:
        raise EngineError(path, f"OpenVINO cannot load this file: {graph.error_summary(error)}") from error
    operations = {each.get_friendly_name(): each for each in model.get_ops()}

    def producer(name: str) -> tuple[str, str] | None:
        operation = operations[name]
        if not operation.get_input_size():
            return None
        return operation.get_type_name(), operation.input_value(0).get_node().get_friendly_name()

    def tensor(each: Any, operation: str = "") -> Tensor:
        name, dtype, shape = each.get_any_name(), each.get_element_type().to_dtype().name, heads.shape_of(each)
        return Tensor(name, name, dtype, None if shape is None else tuple(shape), operation=operation)

    return [tensor(each) for each in model.inputs], [
        tensor(each, last_operation(each.get_node().input_value(0).get_node().get_friendly_name(), producer)[0])
        for each in model.outputs
    ]


def torchscript_tensors(path: Path, size: tuple[int, int] | None) -> InputsAndOutputs:
    """Runs a TorchScript file on a black image of `size`, height and width, to find its inputs and outputs."""
    if size is None:
        raise EngineError(path, "is TorchScript, which declares no input size: give it, as --size 512x1024")
    if max(size) > MAX_SIDE:
        raise EngineError(path, f"cannot take {size[0]}×{size[1]} pixels: give a --size of at most {MAX_SIDE} a side")
    registry.load("engine", ENGINES, "torchscript")
    inputs, outputs = import_module("cloud.engines.torchscript").tensors_of(path, size)
    return _tensors(inputs), _tensors(outputs)


READERS: dict[str, Callable[[Path], InputsAndOutputs]] = {
    "onnx": onnx_tensors,
    "tflite": tflite_tensors,
    "openvino": openvino_tensors,
}


def _tensors(
    tensors: Mapping[str, TensorInfo],
    producer: Callable[[str], tuple[str, str] | None] = lambda _: None,
    *,
    quantizations: Mapping[str, tuple[float, int]] | None = None,
) -> list[Tensor]:
    return [
        Tensor(
            each.name,
            each.name,
            each.dtype or "unsupported",
            each.shape,
            (quantizations or {}).get(each.name),
            last_operation(each.name, producer)[0],
        )
        for each in dict.fromkeys(tensors.values())
    ]


def _onnx_producer(path: Path) -> Callable[[str], tuple[str, str] | None]:
    """Returns the function for `last_operation`; without the package onnx, it knows no operation."""
    try:
        onnx = import_module("onnx")
        file = next(path.glob("*.onnx")) if path.is_dir() else path
        nodes = onnx.load_model(file, load_external_data=False).graph.node
    except Exception:  # noqa: BLE001  ONNX Runtime has loaded the file, so the operations are merely unknown.
        nodes = ()
    producers = {output: (node.op_type, node.input[0]) for node in nodes if node.input for output in node.output}
    return producers.get


def _tflite_producer(path: Path) -> Callable[[str], tuple[str, str] | None]:
    """Returns the function for `last_operation`.

    A custom operation is named with the position of the output, such as "TFLite_Detection_PostProcess:0".
    """
    schema: Any = import_module("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    builtins = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    graph, producers = model.subgraphs[0], {}
    names = [(tensor.name or b"").decode(errors="replace") for tensor in graph.tensors]
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        builtin = max(code.builtinCode, code.deprecatedBuiltinCode)  # Older files have the second one only.
        custom = code.customCode.decode(errors="replace") if code.customCode else None
        is_limited = getattr(operator.builtinOptions, "fusedActivationFunction", 0)  # Such as a ReLU.
        for position, output in enumerate(operator.outputs):
            operation = f"{custom}:{position}" if custom else "limited" if is_limited else builtins.get(builtin, "")
            producers[names[output]] = operation, names[operator.inputs[0]] if len(operator.inputs) else ""
    return producers.get
