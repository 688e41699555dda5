"""Tiny real TensorFlow models: a 3×3 convolution that scores five classes, in each shape a model comes in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from onnx import TensorProto, helper

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from shared.files import tree_sha256
from shared.inference.model import Model
from shared.models.manifest import Placement
from shared.models.repository import Repository

HEIGHT, WIDTH, CLASSES = 8, 12, 5


class Workshop:
    """A repository under construction, and the direct call to compare with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.weights = np.random.default_rng(7).normal(size=(3, 3, 3, CLASSES)).astype(np.float32)
        self.repository = Repository(root)

    def scores(self, pictures: Any) -> Any:
        """The network itself: float N×H×W×3 to float N×H×W×5."""
        return tf.nn.conv2d(pictures, self.weights, 1, "SAME")

    def direct(self, pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """The class of every pixel by the direct call, one picture at a time, arg max by NumPy."""
        return np.concatenate([np.argmax(self.scores(picture[np.newaxis]).numpy(), axis=-1) for picture in pictures])

    def graph(
        self,
        answer: Callable[[Any], Any],
        *,
        batch: int | None = None,
        dtype: str = "float32",
        prepare: Callable[[Any], Any] = lambda images: images,
        names: tuple[str, str] = ("input", "prediction"),
    ) -> Any:
        """A GraphDef: `prepare` before the network, `answer` after it."""
        graph = tf.Graph()
        with graph.as_default():
            images = tf.compat.v1.placeholder(dtype, (batch, HEIGHT, WIDTH, 3), names[0])
            tf.identity(answer(self.scores(prepare(images))), names[1])
        return graph.as_graph_def()

    def open(
        self,
        name: str,
        placement: Placement = Placement(),  # noqa: B008 - frozen.
        **settings: Any,
    ) -> Model:
        """Opens a model; `settings` are those of the loader."""
        return ModelLoader(self.repository, placement, **settings).open(name)

    def add(self, name: str, content: Any, /, **changes: Any) -> Path:
        """Write a model's folder: `content` is a GraphDef, bytes, or what writes a file or folder to a path.

        `changes` are laid over the manifest, one level deep. Returns the folder.
        """
        folder = self.root / name
        folder.mkdir()
        manifest: dict[str, Any] = {
            "format": "frozen_graph",
            "file": "model.pb",
            "input": {"tensor": "input:0", "dtype": "float32", "height": HEIGHT, "width": WIDTH},
            "output": {"tensor": "prediction:0", "kind": "class_ids"},
            "labels": [{"name": f"class-{i}", "colour": [i, 0, 0]} for i in range(CLASSES)],
        }
        for key, value in changes.items():
            manifest[key] = {**manifest[key], **value} if isinstance(value, dict) and key in manifest else value
        path = folder / manifest["file"]
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        manifest.setdefault("sha256", tree_sha256(path))
        (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
        return folder


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """An empty repository to add models to."""
    return Workshop(tmp_path)


@pytest.fixture
def pictures() -> npt.NDArray[np.uint8]:
    """Three pictures of noise, uint8 3×8×12×3."""
    return np.random.default_rng(1).integers(0, 256, (3, HEIGHT, WIDTH, 3), np.uint8)


@pytest.fixture
def add_onnx() -> Callable[[Path, str], None]:
    """Adds a small ONNX model to a repository: each pixel's strongest colour."""

    def add(root: Path, name: str) -> None:
        pictures = helper.make_tensor_value_info("input", TensorProto.UINT8, [None, HEIGHT, WIDTH, 3])
        classes = helper.make_tensor_value_info("prediction", TensorProto.INT64, [None, HEIGHT, WIDTH])
        steps = [
            helper.make_node("Cast", ["input"], ["colours"], to=TensorProto.FLOAT),
            helper.make_node("ArgMax", ["colours"], ["prediction"], axis=3, keepdims=0),
        ]
        graph = helper.make_graph(steps, "strongest", [pictures], [classes])
        content = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        Workshop(root).add(
            name,
            content.SerializeToString(),
            format="onnx",
            file="model.onnx",
            input={"tensor": "input", "dtype": "uint8"},
            output={"tensor": "prediction"},
            warm_up={"runs": 1},
        )

    return add
