"""An engine: what runs a model's file on a device. One module a format, chosen by the manifest's `format`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError
from shared.registry import Entry

Images = npt.NDArray[np.uint8]  # N×H×W×3, in the model's layout.
ClassIds = npt.NDArray[np.uint8]  # N×H×W.

ENGINES = {  # Paths, not classes: naming TensorFlow must not import it.
    "frozen_graph": Entry("cloud.engines.frozen_graph:FrozenGraphEngine", "cloud"),
    "saved_model": Entry("cloud.engines.saved_model:SavedModelEngine", "cloud"),
    "keras": Entry("cloud.engines.keras_model:KerasEngine", "cloud"),
}


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
    """Where a model runs, and on how many threads."""

    device: str = "auto"  # "auto" (a GPU where there is one), "cpu", "gpu" or "gpu:N".
    intra_threads: int = 0  # Within an operation; 0 lets the engine choose.
    inter_threads: int = 0  # Between operations; 0 lets the engine choose.


class Engine(Protocol):
    """A model's file, open on a device. Used by one thread at a time.

    Built as `Engine(path, manifest, placement)` with a `cloud.manifest.Manifest`; raises EngineError or DeviceError
    where that cannot be.
    """

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "gpu:N"."""

    @property
    def batch_size(self) -> int | None:
        """The batch size baked into the graph; None where any will do."""

    def infer(self, batch: Images) -> ClassIds:
        """The class of every pixel, in host memory when it returns.

        `batch`: uint8 N×H×W×3, C-contiguous, in the manifest's layout; N is `batch_size` where that is not None.
        Returns uint8 N×H×W. Raises InferenceError where the model itself fails on this batch.
        """

    def close(self) -> None:
        """Release memory and devices."""


class InferenceError(SkylaneError):
    """A model failed on a batch."""
