"""Small drives of a fixed camera, and models that answer by the brightness of the image."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.scene import PRESENCE, Box
from rosbag_tools.writer import BagWriter
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.models.manifest import Manifest, Precision

HEIGHT, WIDTH = 80, 120  # Size of the camera's images; the models' input has half the size.
VEHICLE, EMPTY = 150, 50  # Grey levels of a frame with and without a vehicle.
BUS = Box("bus", 20, 10, 60, 60)
STREET = ("road", "car", "none")
_PERIOD_NS = 100_000_000
_OUTPUTS: dict[str, dict[str, Any]] = {
    "segmentation": {"output": {"tensor": "o", "kind": "class_ids"}, "confidence": "c"},
    "classification": {"output": {"tensor": "o", "kind": "probabilities"}},
    "detection": {
        "outputs": {"boxes": {"tensor": "b", "kind": "boxes"}, "scores": {"tensor": "s", "kind": "probabilities"}}
    },
}


def write_drive(path: Path, levels: Sequence[int], *, light: int = 0, names: Sequence[str] = ()) -> Path:
    """Writes a bag with an image of each grey level, plus `light`; frames from the level VEHICLE on show a bus.

    `names` are the classes of the labels 0 and 1, if the bag shall name them.
    """
    with BagWriter(path) as writer:
        if names:
            writer.write_label_info("/cam/label_info", names, stamp_ns=1, received_ns=1, frame_id="cam")
        for index, level in enumerate(levels):
            stamp_ns = (1 + index) * _PERIOD_NS
            image = np.full((HEIGHT, WIDTH), level + light, np.uint8)
            truth = np.zeros((HEIGHT, WIDTH), np.uint8)
            boxes = [BUS] if level >= VEHICLE else []
            for box in boxes:
                truth[int(box.y) : int(box.y + box.height), int(box.x) : int(box.x + box.width)] = 1
            writer.write_image("/cam/image_raw", image, "bayer_rggb8", stamp_ns, stamp_ns, "cam")
            writer.write_image("/cam/labels", truth, "mono8", stamp_ns, stamp_ns, "cam")
            writer.write_boxes("/cam/boxes", boxes, stamp_ns=stamp_ns, received_ns=stamp_ns, frame_id="cam")
    return path


def model_of(task: str, certainty: Callable[[float], float], name: str = "reference", **changes: Any) -> Model:
    """Returns a model that sees a bus with the probability `certainty(mean grey level)`."""
    labels = PRESENCE if task == "classification" else STREET if task == "segmentation" else ("vehicle", "person")
    fields = {
        "task": task,
        "format": "onnx",
        "file": "model.onnx",
        "sha256": "a" * 64,
        "input": {"tensor": "i", "height": HEIGHT // 2, "width": WIDTH // 2},
        "labels": [{"name": each, "colour": [index, 0, 0]} for index, each in enumerate(labels)],
    }
    manifest = Manifest.model_validate(fields | _OUTPUTS[task]).with_confidence_head()
    card = ModelCard(
        name, "1", manifest.sha256, task, HEIGHT // 2, WIDTH // 2, Layout.RGB8, Resize.CROP,
        Labels(labels, tuple((index, 0, 0) for index in range(len(labels)))), trained=True,
    )  # fmt: skip
    return Model(manifest, card.__class__(**{**_fields(card), **changes}), _BrightnessEngine(task, certainty))


def _fields(card: ModelCard) -> dict[str, Any]:
    return {name: getattr(card, name) for name in card.__dataclass_fields__}


class _BrightnessEngine:
    """An engine whose output depends on the mean grey level of each image."""

    name = "onnxruntime"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def __init__(self, task: str, certainty: Callable[[float], float]) -> None:
        self._task = task
        self._certainty = certainty

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        outputs = [self._outputs(self._certainty(float(image.mean()))) for image in batch]
        return {head: np.stack([each[head] for each in outputs]) for head in outputs[0]}

    def close(self) -> None:
        """Does nothing."""

    def _outputs(self, probability: float) -> Outputs:
        left, top, right, bottom = (round(each / 2) for each in (BUS.x, BUS.y, BUS.x + BUS.width, BUS.y + BUS.height))
        match self._task:
            case "classification":
                return {"scores": np.array([1 - probability, probability], np.float32)}
            case "detection":
                boxes = np.array([[left, top, right, bottom], [0, 0, 3, 3]], np.float32)
                return {"boxes": boxes, "scores": np.array([[probability, 0], [0, 0.001]], np.float32)}
        scores = np.zeros((HEIGHT // 2, WIDTH // 2, len(STREET)), np.float32)
        scores[..., 0] = 9
        odds = np.log(probability / (1 - probability))
        scores[top:bottom, left:right] = (0, odds, -9)
        return {"mask": scores.argmax(axis=-1).astype(np.uint8), "confidence": scores}
