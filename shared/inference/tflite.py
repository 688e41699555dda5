"""The TensorFlow Lite engine, on the CPU with XNNPACK."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import error_reason
from shared.inference.engine import EngineError, Images, InferenceError, Outputs, choose_device
from shared.inference.pre_postprocess import Array, file_precision
from shared.inference.tensor_binding import TensorBinding, TensorInfo
from shared.models.manifest import Manifest, OutputKind, Placement

_interpreter: Any = import_module("ai_edge_litert.interpreter")  # Any: the package has no type hints.


_PROBABILITY_SPAN = 2  # A quantised mask with a larger range is 0 to 255, or the like.


class TfliteEngine:
    """Runs a `.tflite`; the manifest's tensors are the names of its inputs and outputs, or the keys of its one signature.

    TensorFlow Lite validates the structure of a file but not its numbers, so a manipulated file can crash the process.
    The repository's hash excludes such files, and with `isolated` engines only the engine's process ends.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Opens an interpreter.

        Raises:
            EngineError: the file is not a valid TensorFlow Lite model, or does not match the manifest.
            DeviceError: a GPU was requested.
        """
        self.name = "tflite"
        self.precision = file_precision(manifest, placement, self.name, path)
        self.device = choose_device(placement.device, 0, "TensorFlow Lite", "choose another engine")
        self._path = path
        self._model = open_model(path, placement)
        self._binding = TensorBinding(*tensors_of(self._model), manifest, path)
        self.batch_size = self._binding.batch_size
        self._height, self._width = manifest.input.height, manifest.input.width
        self._inputs = _by_name(self._model.get_input_details())
        self._outputs = _by_name(self._model.get_output_details())
        self._kinds = {tensor.name: manifest.heads[head].kind for head, tensor in self._binding.heads.items()}
        self._allocate(self.batch_size or 1)

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        try:
            if len(batch) != self._allocated:
                self._allocate(len(batch))
            for name, values in self._binding.inputs(batch).items():
                self._model.set_tensor(self._inputs[name]["index"], values)
            self._model.invoke()
            arrays = {name: self._array(name) for name in self._kinds}
        except (RuntimeError, ValueError) as error:
            raise InferenceError(f"the model failed: {error_reason(error)}") from error
        return self._binding.outputs(arrays)

    def close(self) -> None:
        """Releases the interpreter."""
        self._model = None

    def _allocate(self, size: int) -> None:
        """Allocates the tensors for batches of `size` images."""
        black = np.zeros((size, self._height, self._width, 3), np.uint8)
        try:
            for name, values in self._binding.inputs(black).items():
                if tuple(self._inputs[name]["shape"]) != values.shape:
                    self._model.resize_tensor_input(self._inputs[name]["index"], values.shape)
            self._model.allocate_tensors()
        except RuntimeError as error:
            raise EngineError(self._path, f"TensorFlow Lite cannot run this file: {error_reason(error)}") from error
        self._allocated = size

    def _array(self, name: str) -> Array:
        """Returns an output; quantised values as real numbers, except class ids."""
        output = self._outputs[name]
        values: Array = self._model.get_tensor(output["index"])
        scale, zero_point = output["quantization"]
        is_ranged = self._kinds[name] is OutputKind.PROBABILITIES and scale * 255 > _PROBABILITY_SPAN
        if not scale or self._kinds[name] is OutputKind.CLASS_IDS or is_ranged:
            return values
        return (values.astype(np.float32) - np.float32(zero_point)) * np.float32(scale)


def open_model(path: Path, placement: Placement = Placement()) -> Any:  # noqa: B008 - frozen.
    """Returns an interpreter whose tensors are not allocated yet.

    Raises:
        EngineError: the file is not a TensorFlow Lite model.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    threads = placement.intra_threads or os.cpu_count() or 1
    try:
        return _interpreter.Interpreter(model_content=content, num_threads=threads)
    except (RuntimeError, ValueError) as error:
        raise EngineError(path, f"is not a TensorFlow Lite model: {error_reason(error)}") from error


def tensors_of(model: Any) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Returns the inputs and the outputs of a model, by tensor name and by the keys of its one signature."""
    signatures = model.get_signature_list()
    runner = model.get_signature_runner(next(iter(signatures))) if len(signatures) == 1 else None
    inputs = _by_name(model.get_input_details()) | (runner.get_input_details() if runner else {})
    outputs = _by_name(model.get_output_details()) | (runner.get_output_details() if runner else {})
    return {key: _info(each) for key, each in inputs.items()}, {key: _info(each) for key, each in outputs.items()}


def quantizations_of(model: Any) -> dict[str, tuple[float, int]]:
    """Returns scale and zero point of the quantised inputs and outputs by tensor name."""
    tensors = (*model.get_input_details(), *model.get_output_details())
    return {
        each["name"]: (float(each["quantization"][0]), int(each["quantization"][1]))
        for each in tensors
        if each["quantization"][0]
    }


def _by_name(details: list[Any]) -> dict[str, Any]:
    return {each["name"]: each for each in details}


def _info(tensor: Any) -> TensorInfo:
    # A dimension of any size is -1 in the shape signature, which files of older converters leave empty.
    signature = tensor["shape_signature"] if len(tensor["shape_signature"]) else tensor["shape"]
    shape = tuple(int(side) if side > 0 else None for side in signature) or None
    return TensorInfo(tensor["name"], np.dtype(tensor["dtype"]).name, shape)
