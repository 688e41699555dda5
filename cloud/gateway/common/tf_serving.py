"""Metadata of a model in the TensorFlow Serving protocol: its spec, signatures and versions.

A version whose name is a whole number has that number. Any other name, such as `1.2`, gets a number that is computed
from the name and greater than usual numbers; a caller can request it by this number, or by its name as the label.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloud.gateway.common.tensors import (
    ENCODED,
    IMAGES,
    INPUT,
    PACKED,
    RESULTS,
    Tensor,
    TensorSpec,
    output_specs,
    pixels,
)
from cloud.serving.errors import ApiError, ErrorCode, InvalidError
from cloud.serving.served_models import ServedModel
from cloud.serving.submission import Submission
from shared.messages.model_card import ModelCard
from shared.messages.protobuf import message_class
from shared.messages.tensorflow_tensors import dtype_number

DEFAULT = "serving_default"
PACKED_NAME = "packed"
METHOD = "tensorflow/serving/predict"


@dataclass(frozen=True, slots=True)
class Signature:
    """A combination of an input and the outputs of a model."""

    name: str
    input: str
    returns_results: bool = False  # Packed results instead of the model's outputs.

    def input_spec(self, card: ModelCard) -> TensorSpec:
        """Returns the spec of the input tensor."""
        return pixels(card) if self.input == INPUT else ENCODED

    def check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        """Checks that the signature's input is the only one."""
        if inputs.keys() != {self.input}:
            given = ", ".join(sorted(name[:40] for name in inputs)[:8]) or "none"
            raise InvalidError(f"inputs {given}: signature {self.name} accepts {self.input} only: send that")

    def requested_outputs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns the outputs to request from the model for the names in a call; empty: all."""
        if self.returns_results:
            if not set(names) <= {RESULTS}:
                raise InvalidError(f"no output {', '.join(names)[:200]} in signature {self.name}: request {RESULTS}")
            return (RESULTS,)
        if RESULTS in names:
            raise InvalidError(f"no output {RESULTS} in signature {self.name}: use signature {PACKED_NAME}")
        return tuple(dict.fromkeys(names))


SIGNATURES = {
    each.name: each
    for each in (
        Signature(DEFAULT, INPUT),
        Signature("image", IMAGES),
        Signature(PACKED_NAME, IMAGES, returns_results=True),
    )
}


def find_signature(name: str, *, is_vehicle: bool = False) -> Signature:
    """Returns the signature with a name; for an empty name the default, or the signature for vehicles."""
    name = name or (PACKED_NAME if is_vehicle else DEFAULT)
    if name not in SIGNATURES:
        raise InvalidError(f"no signature {name[:80]!r}: choose one of {', '.join(SIGNATURES)}")
    if is_vehicle and name != PACKED_NAME:
        raise InvalidError(f"signature {name} cannot be used with a frame message: use signature {PACKED_NAME}")
    return SIGNATURES[name]


def tensorflow_type(name: str, output: Tensor) -> int:
    """Returns the TensorFlow type number of an output."""
    dtype = output.dtype.name if isinstance(output, np.ndarray) else "bytes"
    number = dtype_number(dtype)
    if number is None:
        raise ApiError(
            ErrorCode.UNPROCESSABLE,
            f"output {name} has the type {dtype}, which is not supported: request other outputs",
        )
    return number


HIGHEST_VERSION = (1 << 63) - 1

_FIRST_COMPUTED = 1 << 32


def model_spec(card: ModelCard, signature_name: str = "") -> Any:
    """Creates the ModelSpec of a response."""
    return message_class("tensorflow.serving.ModelSpec")(
        name=card.name, version={"value": version_number(card.version)}, signature_name=signature_name
    )


def signature_defs(served: ServedModel) -> Any:
    """Creates the SignatureDefMap of a model that is served."""
    card = served.card
    outputs = output_specs(served.model)
    defs = message_class("tensorflow.serving.SignatureDefMap")()
    for signature in SIGNATURES.values():
        signature_def = defs.signature_def[signature.name]
        signature_def.method_name = METHOD
        input_spec = signature.input_spec(card)
        _fill_tensor_info(signature_def.inputs[input_spec.name], input_spec)
        for spec in (PACKED,) if signature.returns_results else outputs:
            _fill_tensor_info(signature_def.outputs[spec.name], spec)
    return defs


def model_status(submission: Submission, model: str, version: str | None) -> Any:
    """Creates the GetModelStatusResponse of the served versions, the current one first; only of `version` if given."""
    submission.find(model, version)
    response = message_class("tensorflow.serving.GetModelStatusResponse")()
    for card in submission.cards():
        if card.name == model and version in (None, card.version):
            status = response.model_version_status.add(version=version_number(card.version), state="AVAILABLE")
            status.status.SetInParent()
    return response


def version_number(version: str) -> int:
    """Returns the number of a version, 0 or greater."""
    if re.fullmatch("0|[1-9][0-9]{0,18}", version) and int(version) <= HIGHEST_VERSION:
        return int(version)
    return _FIRST_COMPUTED + zlib.crc32(version.encode())


def find_version(submission: Submission, model: str, number: int | None, label: str | None) -> str | None:
    """Returns the name of the version with a number or a label; None if neither is given."""
    if number is None:
        if label is not None:
            submission.find(model, label)
        return label
    submission.find(model)
    versions = {version_number(card.version): card.version for card in submission.cards() if card.name == model}
    if number not in versions:
        served = ", ".join(f"{each} ({version})" for each, version in versions.items())
        raise ApiError(ErrorCode.NOT_FOUND, f"{model[:80]} version {number} is not served: request {served}")
    return versions[number]


def _fill_tensor_info(info: Any, spec: TensorSpec) -> None:
    info.name = f"{spec.name}:0"
    if spec.dtype is not None:
        info.dtype = dtype_number(spec.dtype) or 0  # DT_INVALID: callers cannot receive this type.
    info.tensor_shape.unknown_rank = spec.shape is None
    for size in spec.shape or ():
        info.tensor_shape.dim.add(size=size)
