"""An engine is added with one file, this one, and one line in the table: here a linear model in a NumPy file."""

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from cloud.models.loader import ModelLoader
from shared.errors import SkylaneError
from shared.inference.engine import EngineError, Images, Outputs
from shared.inference.table import ENGINES, EngineEntry
from shared.models.manifest import Manifest, Placement
from shared.models.repository import Repository
from tests.pipeline.rig import HEIGHT, WIDTH, noise, pictures, play, worker
from tests.support.workshop import Workshop

FRAMES, CLASSES = 4, 3
WEIGHTS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)  # The class of a pixel is its strongest colour.


class LinearEngine:
    """Scores each pixel by a matrix, colours × classes; see `shared.inference.engine.Engine`."""

    name = "linear"
    device = "cpu"
    batch_size = None

    def __init__(self, path: Path, manifest: Manifest, _placement: Placement) -> None:
        self.precision = manifest.precision
        self._weights = np.load(path)
        if self._weights.shape != (3, len(manifest.labels)):
            raise EngineError(path, f"holds a matrix of shape {self._weights.shape}: give one of 3×{CLASSES}")

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine`."""
        return {"mask": np.argmax(batch @ self._weights, axis=-1).astype(np.uint8)}

    def close(self) -> None:
        """See `shared.inference.engine.Engine`."""


@pytest.fixture(autouse=True)
def _line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in the table."""
    monkeypatch.setitem(ENGINES, "linear", EngineEntry(f"{__name__}:LinearEngine", "cloud", ("matrix",)))


def _repository(root: Path, weights: npt.NDArray[Any] = WEIGHTS) -> Repository:
    root.mkdir(exist_ok=True)
    workshop = Workshop(root)
    workshop.add(
        "tiny",
        lambda path: np.save(path, weights),
        format="matrix",
        file="weights.npy",
        input={"tensor": "pixels", "dtype": "uint8", "height": HEIGHT, "width": WIDTH},
        output={"tensor": "classes"},
        labels=[{"name": f"class-{index}", "colour": [index, 0, 0]} for index in range(CLASSES)],
    )
    return workshop.repository


def test_a_new_engine_serves_the_frames_of_a_vehicle(embedded_url: str, tmp_path: Path) -> None:
    """Manifest, engine table, loader, worker and vehicle know it by its line."""
    loader, out = ModelLoader(_repository(tmp_path / "models")), tmp_path / "car-1"
    with loader.load(loader.find("tiny")) as model, worker(embedded_url, model):
        assert model.card.engine == "linear"
        frames = pictures(tmp_path, FRAMES)
        code, printed = play(frames, embedded_url, out, closed_loop=True, codec="raw", sinks=("png",))
        assert code == 0, printed
    masks = sorted((out / "masks").rglob("*.png"))
    assert len(masks) == FRAMES
    for index, path in enumerate(masks):
        strongest = np.argmax(noise(index, (HEIGHT, WIDTH, 3))[..., ::-1], axis=-1)
        np.testing.assert_array_equal(cv2.imread(str(path), cv2.IMREAD_UNCHANGED), strongest)


def test_its_error_is_reported_with_the_file(tmp_path: Path) -> None:
    """As for every engine, a model that cannot be run is refused at the start."""
    loader = ModelLoader(_repository(tmp_path, np.eye(4)))
    with pytest.raises(EngineError, match=r"weights\.npy: holds a matrix of shape \(4, 4\)"):
        loader.open("tiny")


@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        ({"mask": np.zeros((1, HEIGHT, WIDTH))}, "{'mask': 'float64'}"),
        ({"classes": np.zeros((1, HEIGHT, WIDTH), np.uint8)}, "{'classes': 'uint8'}"),
        ({"mask": [[0]]}, "{'mask': 'list'}"),
        (None, "{'': 'NoneType'}"),
    ],
)
def test_outputs_of_another_kind_are_named(
    outputs: Any, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that returns what its task has not is refused at its warm-up."""
    monkeypatch.setattr(LinearEngine, "infer", lambda *_: outputs)
    loader = ModelLoader(_repository(tmp_path))
    with pytest.raises(
        SkylaneError, match=re.escape(f"engine linear returns {given}, where the task segmentation has")
    ):
        loader.load(loader.find("tiny"))
