"""The TensorFlow Lite engine, on the CPU with XNNPACK."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.devices import choose_device
from cloud.engines.engine import Images, Outputs
from cloud.engines.errors import EngineError, InferenceError
from cloud.engines.placement import Placement
from cloud.engines.pre_postprocess import (
    Array,
    check_other_inputs,
    check_output,
    file_precision,
    find_tensor,
    first_line,
    postprocess,
    preprocessor_for,
)
from cloud.models.manifest import Manifest, OutputKind

_interpreter: Any = import_module("ai_edge_litert.interpreter")  # Any: the package has no type hints.


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
        self._manifest, self._path = manifest, path
        self._model = open_model(path, placement)
        inputs, outputs = _tensors(self._model)
        self._image = find_tensor(inputs, manifest.input.tensor, "input", path)
        self._heads = {
            head: find_tensor(outputs, section.tensor, "output", path) for head, section in manifest.heads.items()
        }
        dtype = np.dtype(self._image["dtype"]).name
        self._preprocessor = preprocessor_for(shape_of(self._image), dtype, manifest, path)
        self.batch_size = self._preprocessor.batch_size
        for head, tensor in self._heads.items():
            check_output(head, shape_of(tensor), manifest, path)
        others = {each["name"]: each for each in inputs.values() if each["index"] != self._image["index"]}
        check_other_inputs(list(others), list(manifest.input.constants), path)
        self._constants = {
            each["index"]: np.full(each["shape"], manifest.input.constants[name], each["dtype"])
            for name, each in others.items()
        }
        self._allocate(self.batch_size or 1)

    def infer(self, batch: Images) -> Outputs:
        """See `cloud.engines.engine.Engine.infer`."""
        try:
            if len(batch) != self._allocated:
                self._allocate(len(batch))
            self._model.set_tensor(self._image["index"], self._preprocessor(batch))
            self._model.invoke()
            outputs = {head: self._model.get_tensor(tensor["index"]) for head, tensor in self._heads.items()}
        except (RuntimeError, ValueError) as error:
            raise InferenceError(f"the model failed: {first_line(error)}") from error
        return {
            head: postprocess(head, self._dequantised(head, values), self._preprocessor, self._manifest, self._path)
            for head, values in outputs.items()
        }

    def close(self) -> None:
        """Releases the interpreter."""
        self._model = None

    def _allocate(self, size: int) -> None:
        """Allocates the tensors for batches of `size` images."""
        if self.batch_size is None:
            self._model.resize_tensor_input(self._image["index"], (size, *self._image["shape"][1:]))
        try:
            self._model.allocate_tensors()
        except RuntimeError as error:
            raise EngineError(self._path, f"TensorFlow Lite cannot run this file: {first_line(error)}") from error
        for index, value in self._constants.items():
            self._model.set_tensor(index, value)
        self._allocated = size

    def _dequantised(self, head: str, values: Array) -> Array:
        """Returns quantised values as real numbers, and class ids unchanged."""
        scale, zero_point = self._heads[head]["quantization"]
        if not scale or self._manifest.heads[head].kind is OutputKind.CLASS_IDS:
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
        raise EngineError(path, f"is not a TensorFlow Lite model: {first_line(error)}") from error


def _tensors(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the details of the inputs and of the outputs, by tensor name and by signature key."""
    inputs = {each["name"]: each for each in model.get_input_details()}
    outputs = {each["name"]: each for each in model.get_output_details()}
    signatures = model.get_signature_list()
    if len(signatures) != 1:
        return inputs, outputs
    runner = model.get_signature_runner(next(iter(signatures)))
    return inputs | runner.get_input_details(), outputs | runner.get_output_details()


def shape_of(tensor: dict[str, Any]) -> list[int | None] | None:
    """Returns the shape of an input or output, with None for a dimension of any size; None if the shape is unknown.

    Such a dimension is -1 in the file's shape signature, which files of older converters leave empty.
    """
    signature = tensor["shape_signature"] if len(tensor["shape_signature"]) else tensor["shape"]
    return [int(side) if side > 0 else None for side in signature] or None
