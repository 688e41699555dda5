"""Fixtures with tiny real TensorFlow and ONNX models."""

from pathlib import Path
from typing import Any

import pytest

from cloud.engines.tensorflow.runtime import tf
from tests.support.workshop import add_onnx, pictures, workshop

__all__ = ["add_onnx", "pictures", "workshop"]


@pytest.fixture
def repository(workshop: Any) -> Path:
    """A repository with one real model."""
    graph = workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8), batch=1)
    workshop.add("tiny", graph, warm_up={"runs": 1})
    root: Path = workshop.root
    return root
