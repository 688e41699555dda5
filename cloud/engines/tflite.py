"""The engine of TensorFlow Lite files, on the CPU with XNNPACK."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.devices import choose
from cloud.engines.engine import EngineError, Images, InferenceError, Outputs, Placement
from cloud.engines.pre_postprocess import (
    Array,
    answer,
    check_other_inputs,
    check_output,
    file_precision,
    first_line,
    named,
    preprocessor_for,
)
from cloud.models.manifest import Manifest, OutputKind

_interpreter: Any = import_module("ai_edge_litert.interpreter")  # Any: it ships no types.


class TfliteEngine:
    """Runs a `.tflite`; the manifest's tensors are its inputs' and outputs' names, or the keys of its one signature.

    The file's structure is checked when it is opened, its numbers are not: a file that was tampered with can end the
    process. The repository's hash says that it is the one that was tried; `isolated` engines end alone.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Open an interpreter.

        Raises:
            EngineError: the file is no TensorFlow Lite model that runs here, or not what the manifest says.
            DeviceError: a GPU was asked for.
        """
        self.name = "tflite"
        self.precision = file_precision(manifest, placement, self.name, path)
        self.device = choose(placement.device, 0, "TensorFlow Lite", "choose another engine")
        self._manifest, self._path = manifest, path
        self._model = open_model(path, placement)
        inputs, outputs = _tensors(self._model)
        self._picture = named(inputs, manifest.input.tensor, "input", path)
        self._heads = {head: named(outputs, section.tensor, "output", path) for head, section in manifest.heads.items()}
        self._feed = preprocessor_for(shape_of(self._picture), np.dtype(self._picture["dtype"]).name, manifest, path)
        self.batch_size = self._feed.batch_size
        for head, tensor in self._heads.items():
            check_output(head, shape_of(tensor), manifest, path)
        spare = {each["name"]: each for each in inputs.values() if each["index"] != self._picture["index"]}
        check_other_inputs(list(spare), list(manifest.input.constants), path)
        self._constants = {
            each["index"]: np.full(each["shape"], manifest.input.constants[name], each["dtype"])
            for name, each in spare.items()
        }
        self._prepare(self.batch_size or 1)

    def infer(self, batch: Images) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`."""
        try:
            if len(batch) != self._prepared:
                self._prepare(len(batch))
            self._model.set_tensor(self._picture["index"], self._feed(batch))
            self._model.invoke()
            found = {head: self._model.get_tensor(tensor["index"]) for head, tensor in self._heads.items()}
        except (RuntimeError, ValueError) as error:
            raise InferenceError(f"the model failed: {first_line(error)}") from error
        return {
            head: answer(head, self._numbers(head, values), self._feed, self._manifest, self._path)
            for head, values in found.items()
        }

    def close(self) -> None:
        """Release the interpreter."""
        self._model = None

    def _prepare(self, size: int) -> None:
        """Lay the memory out for batches of a size."""
        if self.batch_size is None:
            self._model.resize_tensor_input(self._picture["index"], (size, *self._picture["shape"][1:]))
        try:
            self._model.allocate_tensors()
        except RuntimeError as error:
            raise EngineError(self._path, f"TensorFlow Lite cannot run this file: {first_line(error)}") from error
        for index, value in self._constants.items():
            self._model.set_tensor(index, value)
        self._prepared = size

    def _numbers(self, head: str, values: Array) -> Array:
        """What quantised numbers stand for; class ids stand for themselves."""
        scale, zero = self._heads[head]["quantization"]
        if not scale or self._manifest.heads[head].kind is OutputKind.CLASS_IDS:
            return values
        return (values.astype(np.float32) - np.float32(zero)) * np.float32(scale)


def open_model(path: Path, placement: Placement = Placement()) -> Any:  # noqa: B008 - frozen.
    """An interpreter, its memory not laid out yet.

    Raises:
        EngineError: the file is no TensorFlow Lite model.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    try:
        return _interpreter.Interpreter(
            model_content=content, num_threads=placement.intra_threads or os.cpu_count() or 1
        )
    except (RuntimeError, ValueError) as error:
        raise EngineError(path, f"is no TensorFlow Lite model: {first_line(error)}") from error


def _tensors(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The details of its inputs and of its outputs by the names that users know."""
    inputs = {each["name"]: each for each in model.get_input_details()}
    outputs = {each["name"]: each for each in model.get_output_details()}
    signatures = model.get_signature_list()
    if len(signatures) != 1:
        return inputs, outputs
    runner = model.get_signature_runner(next(iter(signatures)))
    return inputs | runner.get_input_details(), outputs | runner.get_output_details()


def shape_of(tensor: dict[str, Any]) -> list[int | None] | None:
    """The shape of an input or output, None where it tells none.

    A side that is open is -1 in the signature; an empty signature is that of a file older than signatures.
    """
    told = tensor["shape_signature"] if len(tensor["shape_signature"]) else tensor["shape"]
    return [int(side) if side > 0 else None for side in told] or None
