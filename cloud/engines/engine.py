"""The contract of an engine, which runs model files on a device, and the table of all engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError

Images = npt.NDArray[np.uint8]  # N×H×W×3, in the channel order of the model.
ClassIds = npt.NDArray[np.uint8]  # N×H×W.
Outputs = Mapping[str, npt.NDArray[Any]]  # Arrays in host memory by the manifest's head; the first axis is the batch.


class EngineEntry(NamedTuple):
    """The import path of an engine ("module:attribute"), the pip extra of its library, and the formats it reads."""

    path: str
    extra: str
    formats: tuple[str, ...]


ENGINES = {  # Paths instead of classes, so that this module imports no framework.
    "tensorflow": EngineEntry(
        "cloud.engines.tensorflow.engine:TensorFlowEngine", "cloud", ("frozen_graph", "saved_model", "keras")
    ),
    "openvino": EngineEntry(
        "cloud.engines.openvino.engine:OpenVinoEngine",
        "openvino",
        ("openvino", "frozen_graph", "saved_model", "onnx", "tflite"),
    ),
    "onnxruntime": EngineEntry("cloud.engines.onnxruntime:OnnxRuntimeEngine", "onnx", ("onnx",)),
    "tflite": EngineEntry("cloud.engines.tflite:TfliteEngine", "tflite", ("tflite",)),
    "torchscript": EngineEntry("cloud.engines.torchscript:TorchScriptEngine", "torch", ("torchscript",)),
    "triton": EngineEntry("cloud.engines.remote.triton:TritonEngine", "transports", ("open_inference",)),
    "tf_serving": EngineEntry("cloud.engines.remote.tf_serving:TfServingEngine", "transports", ("tensorflow_serving",)),
}
AUTO = "auto"  # A manifest's `engine`: the fastest one on this host whose labels agree with the reference engine.

# The default engine of each format: the first one in ENGINES that reads it, except for these three.
FORMATS = {form: name for name, entry in reversed(ENGINES.items()) for form in entry.formats} | {
    "openvino": "openvino",
    "onnx": "onnxruntime",
    "tflite": "tflite",
}


class Precision(StrEnum):
    """The number type of a model's weights and of its arithmetic."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


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


@dataclass(frozen=True, slots=True)
class Placement:
    """The device, thread counts and precision that a model runs with."""

    device: str = "auto"  # "auto" (a GPU if there is one), "cpu", "gpu" or "gpu:N".
    intra_threads: int = 0  # Threads within an operation; 0 lets the engine choose.
    inter_threads: int = 0  # Threads between operations; 0 lets the engine choose.
    instances: int | None = None  # Batches inferred at the same time; None lets the engine choose.
    precision: Precision | None = None  # None takes the manifest's.


class Engine(Protocol):
    """A model's file, opened on a device.

    An engine is built as `Engine(path, manifest, placement)`, with a `cloud.models.manifest.Manifest`; the constructor
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


class InferenceError(SkylaneError):
    """A model failed on a batch. The text is sent to the vehicle, so it contains no path of this host."""


class ModelUnavailableError(InferenceError):
    """The model could not be reached. The images are not the cause, so a retry image by image is useless."""
