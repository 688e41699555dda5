"""A faulty engine: the largest pixel value of a batch selects its fault."""

import ctypes
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cloud.isolation.engine import IsolatedEngine, IsolationLimits
from shared.inference.engine import InferenceError, Outputs
from shared.models.manifest import (
    BatchingSection,
    InputSection,
    Manifest,
    OutputKind,
    OutputSection,
    Placement,
    Precision,
)

RAISE, BUG, HANG, EXIT, CRASH, EAT, WIDE = range(240, 247)


HEIGHT, WIDTH = 8, 12
PATIENT = IsolationLimits(hang_s=60.0)


class Nasty:
    """Returns the first channel, except for the numbers above."""

    name = "nasty"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        self.opened = (path, manifest, placement)
        if path.name == "exits":
            os._exit(9)
        if path.name == "raises":
            raise InferenceError(f"{path} is nasty")

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        values = batch[..., 0].copy()
        match max(values.flat):
            case number if number == RAISE:
                raise InferenceError("the model returned NaN")
            case number if number == BUG:
                raise ZeroDivisionError("a bug")
            case number if number == HANG:
                os.write(2, b"stuck\n")
                ctypes.PyDLL(None).sleep(3600)  # Holds the interpreter's lock: no Python thread could end this.
            case number if number == EXIT:
                os._exit(7)
            case number if number == CRASH:
                os.kill(os.getpid(), signal.SIGSEGV)
            case number if number == EAT:
                eaten = []
                while True:
                    eaten.append(np.ones(1 << 26, np.uint8))
            case number if number == WIDE:
                return {"mask": np.repeat(values, 64, axis=-1)}
        return {"mask": values}

    def close(self) -> None:
        """See Engine."""


class Watched(IsolatedEngine):
    """Has a short time limit only for batches that hang, so that a busy machine does not matter."""

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        self.limits = replace(self.limits, hang_s=0.5 if (batch == HANG).any() else PATIENT.hang_s)
        return super().infer(batch)


def manifest() -> Manifest:
    """A manifest with batches of up to four images."""
    return Manifest(
        format="frozen_graph",
        file="none",
        sha256="ab" * 32,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        output=OutputSection(tensor="prediction:0", kind=OutputKind.CLASS_IDS),
        labels_file="none",
        batching=BatchingSection(max_size=4),
    )


def pictures(*numbers: int) -> npt.NDArray[np.uint8]:
    """A batch of images, each filled with one of the numbers."""
    return np.stack([np.full((HEIGHT, WIDTH, 3), number, np.uint8) for number in numbers])
