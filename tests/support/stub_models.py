"""Models with a fixed output, for tests of evaluation and rendering."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.scene import Box
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.models.manifest import DetectionSection, Manifest, Precision

HEIGHT, WIDTH = 80, 120  # Size of the camera's images; the models' input has half the size.
CAR = Box("car", 20, 30, 40, 30)  # The object that `detector` finds, in pixels of the camera.


class FixedEngine:
    """An engine that returns the same output for each image."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def __init__(self, output: dict[str, npt.NDArray[np.float32]]) -> None:
        self._output = output

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        return {head: np.repeat(values[np.newaxis], len(batch), axis=0) for head, values in self._output.items()}

    def close(self) -> None:
        """Does nothing."""


def fixed_model(task: str, names: tuple[str, ...], **output: npt.NDArray[np.float32]) -> Model:
    """Returns a model of a task with the given class names and output by head."""
    size = SimpleNamespace(height=HEIGHT // 2, width=WIDTH // 2)
    fields: dict[str, Any] = {
        "batching": SimpleNamespace(max_size=1),
        "warm_up": SimpleNamespace(runs=1),
        "detection": DetectionSection(),
        "input": size,
        "top_k": 2,
    }
    labels = Labels(names, ((255, 0, 0), (0, 255, 0), (0, 0, 255))[: len(names)])
    card = ModelCard(
        "stub", "1", "0" * 64, task, size.height, size.width, Layout.RGB8, Resize.CROP, labels, trained=True
    )
    return Model(Manifest.model_construct(**fields), card, FixedEngine(output))


def detector(names: tuple[str, ...] = ("vehicle", "person")) -> Model:
    """Returns a detector that finds CAR as class 0, and nothing else."""
    boxes = np.array([[10, 15, 30, 30], [0, 0, 5, 5]], np.float32)
    return fixed_model("detection", names, boxes=boxes, scores=np.array([[0.9, 0.0], [0.0, 0.01]], np.float32))


def classifier(names: tuple[str, ...] = ("clear", "fog", "rain"), scores: tuple[float, ...] = (0.1, 0.7, 0.2)) -> Model:
    """Returns a classifier that gives these scores; by default one of weathers that predicts fog."""
    return fixed_model("classification", names, scores=np.array(scores, np.float32))


def tensor_model() -> Model:
    """Returns a model of raw tensors."""
    return fixed_model("tensors", (), features=np.arange(3, dtype=np.float32))
