"""Fixtures of the end-to-end tests: a tiny model, images, and checks that no thread is left."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from rosbag_tools.drive.scene import CLASSES as DRIVE_CLASSES
from shared.inference.model import Model
from shared.models.repository import Repository
from tests.pipeline.rig import CLASSES, HEIGHT, WAIT_S, WIDTH
from tests.support.model_folder import write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a repository with the model `tiny`, a frozen graph: uint8 1×64×96×3 to class ids."""
    root = tmp_path_factory.mktemp("models")
    weights = np.random.default_rng(7).normal(size=(5, 5, 3, CLASSES)).astype(np.float32)
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, HEIGHT, WIDTH, 3), "input")
        scores = tf.nn.conv2d(tf.cast(images, tf.float32), weights, 1, "SAME")
        tf.cast(tf.argmax(scores, -1), tf.uint8, name="prediction")
    labels = [{"name": name, "colour": [20 * i, 0, 255 - 20 * i]} for i, name in enumerate(DRIVE_CLASSES[:CLASSES])]
    write_model(
        root / "tiny",
        "model.pb",
        graph.as_graph_def().SerializeToString(),
        format="frozen_graph",
        input={"tensor": "input:0", "height": HEIGHT, "width": WIDTH},
        output={"tensor": "prediction:0", "kind": "class_ids"},
        labels=labels,
        warm_up={"runs": 1},
    )
    return root


@pytest.fixture(scope="module")
def model(models: Path) -> Iterator[Model]:
    """Loads the tiny model once; the worker and direct calls share it."""
    with ModelLoader(Repository(models)).open("tiny") as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Checks that each test has ended its threads; those of gRPC end shortly after their server."""
    before = {thread.name for thread in threading.enumerate()}
    yield
    until_s = time.monotonic() + WAIT_S
    while (left := {thread.name for thread in threading.enumerate()} - before) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not left
