"""Connects the tensors of a model file to the images and heads of its manifest."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import suggestion
from shared.inference.engine import EngineError, Images, Outputs
from shared.inference.pre_postprocess import Array, check_output, postprocess, preprocessor_for
from shared.messages.tensors import MAX_BYTES
from shared.models.manifest import Manifest
from shared.sanitize import printable


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output as a file or a server describes it."""

    name: str
    dtype: str | None  # The NumPy name; None if unknown or unsupported.
    shape: tuple[int | None, ...] | None  # None if unknown; a None inside is a dimension of any size.


def find_tensor(tensors: Mapping[str, Any], name: str, role: str, path: Path) -> Any:
    """Returns a tensor by name; `role` is "input" or "output".

    Raises:
        EngineError: there is no such tensor; the message suggests the nearest names.
    """
    if name not in tensors:
        raise EngineError(path, f"the model has no {role} {name!r}{suggestion(name, tensors)}")
    return tensors[name]


def check_other_inputs(required: Iterable[str], manifest: Manifest, path: Path) -> None:
    """Checks that each input other than the image has a value in the manifest's constants.

    Raises:
        EngineError: an input has no value.
    """
    missing = sorted(set(required) - set(manifest.input.constants))
    if missing:
        raise EngineError(path, f"also needs {printable(', '.join(missing[:5]))}: give each a value in input.constants")


class TensorBinding:
    """Makes the inputs of a model from images, and the heads of its manifest from its outputs, in NumPy."""

    def __init__(
        self,
        inputs: Mapping[str, TensorInfo],
        outputs: Mapping[str, TensorInfo],
        manifest: Manifest,
        path: Path,
        *,
        needs_all: bool = True,
    ) -> None:
        """Finds and checks the tensors of the manifest.

        Args:
            inputs: The inputs by the names that a manifest may use.
            outputs: The outputs, likewise.
            manifest: The manifest.
            path: The model file, for messages.
            needs_all: Whether the model needs every input; False if some may be optional.

        Raises:
            EngineError: a tensor is missing or does not match the manifest.
        """
        self._manifest, self._path = manifest, path
        self.image = find_tensor(inputs, manifest.input.tensor, "input", path)
        self._preprocessor = preprocessor_for(
            self.image.shape, self.image.dtype or "of an unsupported type", manifest, path
        )
        self.batch_size = self._preprocessor.batch_size
        self.heads: dict[str, TensorInfo] = {}
        for head, section in manifest.heads.items():
            self.heads[head] = find_tensor(outputs, section.tensor, "output", path)
            check_output(head, self.heads[head].shape, self._preprocessor, manifest, path)
        self._constants = {inputs[name]: value for name, value in manifest.input.constants.items() if name in inputs}
        if needs_all:
            others = {each.name for each in inputs.values() if each not in self._constants}
            check_other_inputs(others - {self.image.name}, manifest, path)
        for tensor in self._constants:
            self._check_constant(tensor)

    def inputs(self, images: Images) -> dict[str, Array]:
        """Returns the inputs by name, for uint8 images N×H×W×3; a constant fills its tensor."""
        constants = {}
        for tensor, value in self._constants.items():
            sides = [side or (len(images) if axis == 0 else 1) for axis, side in enumerate(tensor.shape or ())]
            constants[tensor.name] = np.full(sides, value, tensor.dtype)
        return {self.image.name: self._preprocessor(images), **constants}

    def outputs(self, arrays: Mapping[str, Array]) -> Outputs:
        """Returns the heads as `Engine.infer` defines them, from the outputs by name.

        Raises:
            InferenceError: an output contains NaN, or its shape does not match the manifest.
        """
        return {
            head: postprocess(head, arrays[tensor.name], self._preprocessor, self._manifest, self._path)
            for head, tensor in self.heads.items()
        }

    def _check_constant(self, tensor: TensorInfo) -> None:
        if tensor.dtype in (None, "bytes"):
            kind = "strings" if tensor.dtype else "an unsupported type"
            raise EngineError(self._path, f"input {tensor.name!r} takes {kind}: input.constants gives numbers")
        if prod(side or 1 for side in tensor.shape or ()) * np.dtype(tensor.dtype).itemsize > MAX_BYTES:
            problem = f"input {tensor.name!r} takes more than {MAX_BYTES} bytes: input.constants gives less"
            raise EngineError(self._path, problem)
