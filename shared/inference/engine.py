"""The contract of an engine, which runs model files on a device, and its errors; `table` lists all engines."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError
from shared.inference.table import DEVICE_NAME, DEVICE_RULE
from shared.models.manifest import Precision


class EngineError(SkylaneError):
    """A model's file cannot be run as its manifest describes it."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class DeviceError(SkylaneError):
    """The requested device is missing or unsuitable."""

    def __init__(self, device: str, problem: str) -> None:
        self.device = device
        super().__init__(f"device {device!r}: {problem}")


class InferenceError(SkylaneError):
    """A model failed on a batch. The text is sent to the vehicle, so it contains no path of this host."""


class ModelUnavailableError(InferenceError):
    """The model could not be reached. The images are not the cause, so a retry image by image is useless."""


Images = npt.NDArray[np.uint8]  # N×H×W×3, in the channel order of the model.
ClassIds = npt.NDArray[np.uint8]  # N×H×W.
Outputs = Mapping[str, npt.NDArray[Any]]  # Arrays in host memory by the manifest's head; the first axis is the batch.


class Engine(Protocol):
    """A model's file, opened on a device.

    An engine is built as `Engine(path, manifest, placement)`, with a `shared.models.manifest.Manifest`; the constructor
    raises EngineError or DeviceError. One thread at a time uses an engine, unless it has a true attribute
    `is_reentrant`; the optional attribute `instances` is then the best number of concurrent batches.
    """

    @property
    def name(self) -> str:
        """The key of the engine in ENGINES."""

    @property
    def device(self) -> str:
        """The device in use: "cpu", "gpu:N", or the address of the server that runs the model."""

    @property
    def precision(self) -> Precision:
        """The number type that the engine computes in."""

    @property
    def batch_size(self) -> int | None:
        """The fixed batch size of the graph; None if it accepts any."""

    def infer(self, batch: Images) -> Outputs:
        """Runs the model and returns its outputs by head, in host memory.

        Args:
            batch: uint8 N×H×W×3, C-contiguous, in the manifest's channel order. N is `batch_size` unless that is None.

        Returns:
            The outputs of the manifest's task.

            - segmentation: {"mask": uint8 N×H×W class ids of the input's size; the lowest id wins a tie}
            - classification: {"scores": float32 N×C probabilities}
            - detection: {"boxes": float32 N×A×4, x1, y1, x2, y2 in pixels of the input;
              "scores": float32 N×A×C probabilities}
            - tensors: every head unchanged

        Raises:
            InferenceError: the model failed on this batch, or its output contains NaN.
        """

    def close(self) -> None:
        """Releases memory and devices."""


def choose_device(device: str, gpus: int, library: str, remedy: str) -> str:
    """Returns the device to run on, "cpu" or "gpu:N".

    Args:
        device: The requested device.
        gpus: The number of GPUs that the library sees.
        library: The library's name, for messages.
        remedy: What to do if the library sees no GPU, for messages.

    Raises:
        DeviceError: the name is invalid, or this machine has no such GPU.
    """
    if re.fullmatch(DEVICE_NAME, device) is None:
        raise DeviceError(device, f"is not a device: use {DEVICE_RULE}")
    if device == "cpu":
        return "cpu"
    if device == "auto":
        return "gpu:0" if gpus else "cpu"
    index = int(device.partition(":")[2] or 0)
    if not gpus:
        raise DeviceError(device, f"{library} sees no GPU on this machine: use cpu, or {remedy}")
    if index >= gpus:
        raise DeviceError(device, f"this machine has {gpus} GPU(s), numbered from 0: use gpu:{gpus - 1}")
    return f"gpu:{index}"
