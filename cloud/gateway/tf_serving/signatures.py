"""The signatures of every model at TensorFlow Serving's doors: which tensor comes in, and what goes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import IMAGES, INPUT, RESULTS, Tensor
from cloud.gateway.common.tensor_specs import ENCODED, TensorSpec, pixels
from shared.encoding.tensorflow_tensors import STRING, dtype_number
from shared.messages.model_card import ModelCard

DEFAULT = "serving_default"
METHOD = "tensorflow/serving/predict"


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to call a model."""

    name: str
    input: str
    gives_results: bool = False  # Finished results; otherwise the model's outputs.

    def inputs(self, card: ModelCard) -> tuple[TensorSpec, ...]:
        """What it takes."""
        return (pixels(card) if self.input == INPUT else ENCODED,)

    def check(self, inputs: Mapping[str, Tensor]) -> None:
        """Check that exactly its input is there.

        Raises:
            RefusedError: it is not.
        """
        if inputs.keys() != {self.input}:
            given = ", ".join(sorted(name[:40] for name in inputs)[:8]) or "none"
            raise RefusedError(Kind.INVALID, f"inputs {given}: signature {self.name} takes {self.input} alone")

    def wanted(self, names: Sequence[str]) -> tuple[str, ...]:
        """The outputs to ask the model for, of those that the caller names; empty: all.

        Raises:
            RefusedError: one belongs to another signature.
        """
        if self.gives_results:
            if not set(names) <= {RESULTS}:
                raise RefusedError(
                    Kind.INVALID, f"no output {', '.join(names)[:200]}: signature {self.name} gives {RESULTS}"
                )
            return (RESULTS,)
        if RESULTS in names:
            raise RefusedError(Kind.INVALID, f"signature {self.name} does not give {RESULTS}: {PACKED_NAME} does")
        return tuple(dict.fromkeys(names))


PACKED_NAME = "packed"
SIGNATURES = {
    each.name: each
    for each in (
        Signature(DEFAULT, INPUT),
        Signature("image", IMAGES),
        Signature(PACKED_NAME, IMAGES, gives_results=True),
    )
}


def signature(name: str, *, is_vehicle: bool = False) -> Signature:
    """The signature of that name; where there is none, the default, or the one that vehicles use.

    Raises:
        RefusedError: there is no such signature, or it is not one for vehicles.
    """
    name = name or (PACKED_NAME if is_vehicle else DEFAULT)
    if name not in SIGNATURES:
        raise RefusedError(Kind.INVALID, f"no signature {name[:80]!r}: choose one of {', '.join(SIGNATURES)}")
    if is_vehicle and name != PACKED_NAME:
        raise RefusedError(
            Kind.INVALID, f"signature {name}: a call with a frame message is answered by {PACKED_NAME} alone"
        )
    return SIGNATURES[name]


def type_of(name: str, output: Tensor) -> int:
    """TensorFlow's number of an output's type.

    Raises:
        RefusedError: it is none that is spoken here.
    """
    number = dtype_number(output.dtype.name) if isinstance(output, np.ndarray) else STRING
    if number is None:
        assert isinstance(output, np.ndarray)
        raise RefusedError(
            Kind.UNPROCESSABLE, f"output {name} is {output.dtype.name}, which is not spoken here: ask for others"
        )
    return number
