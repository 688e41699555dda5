"""An engine: what runs a model's file on a device. One module an engine; a manifest's `format` and `engine` choose it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError

Images = npt.NDArray[np.uint8]  # N×H×W×3, in the model's layout.
ClassIds = npt.NDArray[np.uint8]  # N×H×W.
Outputs = Mapping[str, npt.NDArray[Any]]  # By the manifest's head; the first axis is N; in host memory.


class EngineEntry(NamedTuple):
    """Where an engine lives ("module:attribute"), the pip extra that brings its library, and the formats that it reads."""

    path: str
    extra: str
    formats: tuple[str, ...]


ENGINES = {  # Paths, not classes: naming TensorFlow must not import it.
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
AUTO = "auto"  # In a manifest's `engine`: the fastest on this host whose labels agree with the reference's.

# Each format's own engine, which runs it where no other is asked for: the first of the table that reads it.
FORMATS = {form: name for name, entry in reversed(ENGINES.items()) for form in entry.formats} | {
    "openvino": "openvino",
    "onnx": "onnxruntime",
    "tflite": "tflite",
}


class Precision(StrEnum):
    """What a model's numbers are, and what they are computed in."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


class EngineError(SkylaneError):
    """A model's file cannot be run as its manifest says."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class DeviceError(SkylaneError):
    """A device was asked for that is not there."""

    def __init__(self, device: str, problem: str) -> None:
        self.device = device
        super().__init__(f"device {device!r}: {problem}")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model runs, on how many threads, and in what numbers."""

    device: str = "auto"  # "auto" (a GPU where there is one), "cpu", "gpu" or "gpu:N".
    intra_threads: int = 0  # Within an operation; 0 lets the engine choose.
    inter_threads: int = 0  # Between operations; 0 lets the engine choose.
    instances: int | None = None  # Batches that are inferred at a time; None lets the engine choose.
    precision: Precision | None = None  # None: as the manifest says.


class Engine(Protocol):
    """A model's file, open on a device. Used by one thread at a time, unless it has a true `is_reentrant`.

    One that has it may tell in `instances` how many batches it is best given at a time.

    Built as `Engine(path, manifest, placement)` with a `cloud.models.manifest.Manifest`; raises EngineError or DeviceError
    where that cannot be.
    """

    @property
    def name(self) -> str:
        """Its key in ENGINES."""

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "gpu:N"; of a model on another server, that one's address."""

    @property
    def precision(self) -> Precision:
        """What it computes in."""

    @property
    def batch_size(self) -> int | None:
        """The batch size baked into the graph; None where any will do."""

    def infer(self, batch: Images) -> Outputs:
        """What the model answers, by the manifest's head, in host memory when it returns.

        `batch`: uint8 N×H×W×3, C-contiguous, in the manifest's layout; N is `batch_size` where that is not None.
        By task: segmentation {"mask": uint8 N×H×W class ids of the input's size, the lowest where scores are equal};
        classification {"scores": float32 N×C, probabilities}; detection {"boxes": float32 N×A×4, x1, y1, x2, y2 in
        pixels of the input, "scores": float32 N×A×C, probabilities}; tensors: every head as the model gives it.
        Raises InferenceError where the model itself fails on this batch, or answers with numbers that are none.
        """

    def close(self) -> None:
        """Release memory and devices."""


class InferenceError(SkylaneError):
    """A model failed on a batch. The vehicle is told the text: no path of this host stands in it."""


class ModelUnavailableError(InferenceError):
    """A model could not be asked, whatever the pictures: none of them need be tried alone."""
