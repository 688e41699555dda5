"""Reads the inputs and outputs of formats that declare them: ONNX, TensorFlow Lite and OpenVINO."""

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from modelling.inspection.model_tensors import (
    ARITHMETIC,
    Step,
    Tensor,
    first_arithmetic,
    format_tensors,
    input_scale,
    last_operation,
)
from shared import registry
from shared.errors import error_reason
from shared.inference.engine import EngineError
from shared.inference.table import ENGINES
from shared.inference.tensor_binding import TensorInfo
from shared.models.manifest import MAX_SIDE

InputsAndOutputs = tuple[list[Tensor], list[Tensor]]

_NAME_KEYS = ("names", "class_names", "classes", "labels", "id2label", "categories")  # Metadata keys.
_MAX_METADATA = 1 << 17  # Characters.
_NORMALISATION = 4  # Constants of a batch normalisation: scale, offset, mean and variance.
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
        return input_scale(image.arithmetic)

    def random_operations(self, _output: Tensor) -> list[str]:
        """Returns nothing, because the operations are unknown; two runs on the same noise reveal random ones."""
        return []


def onnx_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of an ONNX file."""
    engine = import_module("shared.inference.onnxruntime")
    inputs, outputs = engine.tensors_of(engine.open_session(path))
    steps = _onnx_steps(path)
    return _tensors(inputs, steps), _tensors(outputs, steps)


def tflite_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of a TensorFlow Lite file."""
    engine = import_module("shared.inference.tflite")
    model = engine.open_model(path)
    if len(names := list(model.get_signature_list())) > 1:
        raise EngineError(path, f"has the signatures {', '.join(names)}: convert it with signature_keys=[one of them]")
    inputs, outputs = engine.tensors_of(model)
    if "" in (each.name for each in (*inputs.values(), *outputs.values())):
        raise EngineError(path, "has tensors without names, which a manifest needs: convert it without stripping them")
    quantizations, steps = engine.quantizations_of(model), _tflite_steps(path)
    return _tensors(inputs, steps, quantizations), _tensors(outputs, steps, quantizations)


def openvino_tensors(path: Path) -> InputsAndOutputs:
    """Reads the inputs and outputs of a folder with OpenVINO's model.xml."""
    heads = import_module("cloud.engines.openvino.heads")
    try:
        model = import_module("cloud.engines.openvino.runtime").core().read_model(path / IR_NAME)
    except RuntimeError as error:
        raise EngineError(path, f"OpenVINO cannot load this file: {error_reason(error)}") from error

    def step(operation: Any) -> Step:
        sources = [source.get_source_output() for source in operation.inputs()]
        nodes = [source.get_node() for source in sources]
        # A constant of compressed weights is converted first.
        values = (each.input_value(0).get_node() if each.get_type_name() == "Convert" else each for each in nodes)
        constants = (each.data for each in values if each.get_type_name() == "Constant")
        kind, axis = operation.get_type_name(), operation.get_attributes().get("axis")
        shape = heads.shape_of(sources[0]) if sources and kind == "TopK" else None
        names = [each.get_friendly_name() for each in nodes]
        array = next(constants, None) if kind.lower() in ARITHMETIC else None
        if kind == "BatchNormInference" and len(parameters := list(constants)) == _NORMALISATION:
            array = np.concatenate(parameters[-2:])
        return Step(kind, names, [operation.get_friendly_name()], array, None if shape is None else shape[axis])

    steps = [step(each) for each in model.get_ops()]

    def tensor(each: Any, node: Any) -> Tensor:
        name, dtype, shape = each.get_any_name(), each.get_element_type().to_dtype().name, heads.shape_of(each)
        info = TensorInfo(name, dtype, None if shape is None else tuple(shape))
        return _tensor(info, steps, node.get_friendly_name())

    return [tensor(each, each.get_node()) for each in model.inputs], [
        tensor(each, each.get_node().input_value(0).get_node()) for each in model.outputs
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


def onnx_class_names(path: Path) -> tuple[str, ...]:
    """Returns the class names in an ONNX file's metadata, by class id: a list or a map, in JSON or as a Python literal."""
    session = import_module("shared.inference.onnxruntime").open_session(path)
    metadata = session.get_modelmeta().custom_metadata_map
    for text in (metadata[key] for key in _NAME_KEYS if len(metadata.get(key, "")) in range(1, _MAX_METADATA)):
        for parse in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError):
                found = parse(text)
                if isinstance(found, dict):
                    by_id = {int(each): name for each, name in found.items()}
                    found = [by_id.get(number) for number in range(len(by_id))]
                if isinstance(found, list | tuple) and found and all(isinstance(each, str) for each in found):
                    return tuple(found)
    return ()


def _tensors(
    tensors: Mapping[str, TensorInfo],
    steps: Sequence[Step] = (),
    quantizations: Mapping[str, tuple[float, int]] = MappingProxyType({}),
) -> list[Tensor]:
    found = dict.fromkeys(tensors.values())
    return [_tensor(each, steps, each.name, quantizations.get(each.name)) for each in found]


def _tensor(
    info: TensorInfo, steps: Sequence[Step], node: str, quantization: tuple[float, int] | None = None
) -> Tensor:
    producers = {output: step for step in steps for output in step.outputs if step.inputs}

    def producer(name: str) -> tuple[str, str] | None:
        return (producers[name].operation, producers[name].inputs[0]) if name in producers else None

    operation, source = last_operation(node, producer)
    classes = producers[source].classes if source in producers else None
    arithmetic = first_arithmetic(node, lambda name: [step for step in steps if name in step.inputs])
    dtype = info.dtype or "unsupported"
    return Tensor(info.name, info.name, dtype, info.shape, quantization, operation, classes, arithmetic)


def _onnx_steps(path: Path) -> list[Step]:
    """Returns the operations of an ONNX file; without the package onnx, none."""
    try:
        onnx = import_module("onnx")
        file = next(path.glob("*.onnx")) if path.is_dir() else path
        model = onnx.load_model(file, load_external_data=False)
        inferred = import_module("onnx.shape_inference").infer_shapes(model).graph
    except Exception:  # noqa: BLE001  ONNX Runtime has loaded the file, so the operations are merely unknown.
        return []
    arrays = {each.name: each for each in model.graph.initializer if not each.external_data}
    arrays |= {each.output[0]: each.attribute[0].t for each in model.graph.node if each.op_type == "Constant"}
    shapes = {each.name: each.type.tensor_type.shape.dim for each in (*inferred.value_info, *inferred.output)}

    def step(node: Any) -> Step:
        constants = [arrays[argument] for argument in node.input if argument in arrays and arrays[argument].data_type]
        array = onnx.numpy_helper.to_array(constants[0]) if constants and node.op_type.lower() in ARITHMETIC else None
        if node.op_type == "BatchNormalization" and len(constants) == _NORMALISATION:
            array = np.concatenate([onnx.numpy_helper.to_array(each) for each in constants[2:]])
        axis = next((each.i for each in node.attribute if each.name == "axis"), -1 if node.op_type == "TopK" else 0)
        sides = shapes.get(node.input[0]) if node.op_type in ("ArgMax", "TopK") else None
        return Step(node.op_type, node.input, node.output, array, sides[axis].dim_value or None if sides else None)

    return [step(each) for each in model.graph.node]


def _tflite_steps(path: Path) -> list[Step]:
    """Returns the operations of a TensorFlow Lite file.

    A custom operation is named with the position of the output, such as "TFLite_Detection_PostProcess:0".
    """
    schema: Any = import_module("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    builtins = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    graph, steps = model.subgraphs[0], []
    names = [(tensor.name or b"").decode(errors="replace") for tensor in graph.tensors]
    is_float = [tensor.type == schema.TensorType.FLOAT32 for tensor in graph.tensors]
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        builtin = max(code.builtinCode, code.deprecatedBuiltinCode)  # Older files have the second one only.
        custom = code.customCode.decode(errors="replace") if code.customCode else None
        is_limited = getattr(operator.builtinOptions, "fusedActivationFunction", 0)  # For example a ReLU.
        kind = "limited" if is_limited else builtins.get(builtin, "")
        data = [model.buffers[graph.tensors[each].buffer].data for each in operator.inputs if is_float[each]]
        constants = [bytes(each) for each in data if kind.lower() in ARITHMETIC and each is not None]
        constant = np.frombuffer(constants[0], np.float32) if constants else None
        inputs = [names[each] for each in operator.inputs]
        classes = None
        if kind == "ARG_MAX" and (axis := model.buffers[graph.tensors[operator.inputs[1]].buffer].data) is not None:
            scores = graph.tensors[operator.inputs[0]]
            sides = scores.shape if scores.shapeSignature is None else scores.shapeSignature
            classes = max(0, int(sides[np.int8(axis[0])])) or None  # The axis is little-endian and small.
        for position, output in enumerate(operator.outputs):
            name = f"{custom}:{position}" if custom else kind
            steps.append(Step(name, inputs, [names[output]], constant, classes))
    return steps
