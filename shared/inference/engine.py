"""The contract of an engine, which runs model files on a device; `table` lists all engines."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shared.inference.placement import Precision

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
