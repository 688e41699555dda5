"""The signatures of every model in the TensorFlow Serving protocol: their inputs and outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.tensors import ENCODED, IMAGES, INPUT, RESULTS, Tensor, TensorSpec, pixels
from shared.encoding.tensorflow_tensors import dtype_number
from shared.messages.model_card import ModelCard

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
        """Checks that the signature's input is the only one.

        Raises:
            ApiError: there are other inputs.
        """
        if inputs.keys() != {self.input}:
            given = ", ".join(sorted(name[:40] for name in inputs)[:8]) or "none"
            raise InvalidError(f"inputs {given}: signature {self.name} accepts {self.input} only: send that")

    def requested_outputs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns the outputs to request from the model for the names in a call; empty: all.

        Raises:
            ApiError: a name belongs to another signature.
        """
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
    """Returns the signature with a name; for an empty name the default, or the signature for vehicles.

    Raises:
        ApiError: there is no such signature, or a vehicle cannot use it.
    """
    name = name or (PACKED_NAME if is_vehicle else DEFAULT)
    if name not in SIGNATURES:
        raise InvalidError(f"no signature {name[:80]!r}: choose one of {', '.join(SIGNATURES)}")
    if is_vehicle and name != PACKED_NAME:
        raise InvalidError(f"signature {name} cannot be used with a frame message: use signature {PACKED_NAME}")
    return SIGNATURES[name]


def tensorflow_type(name: str, output: Tensor) -> int:
    """Returns the TensorFlow type number of an output.

    Raises:
        ApiError: TensorFlow Serving clients cannot receive this type.
    """
    dtype = output.dtype.name if isinstance(output, np.ndarray) else "bytes"
    number = dtype_number(dtype)
    if number is None:
        raise ApiError(
            ErrorCode.UNPROCESSABLE,
            f"output {name} has the type {dtype}, which is not supported: request other outputs",
        )
    return number
