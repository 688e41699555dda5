"""The function that every peer serves: a TensorFlow graph from colour pixels to class ids, and a JPEG's decoding before it.

It needs TensorFlow, NumPy and OpenCV alone, and nothing of Skylane's: each peer loads it in an environment of its own.
The graph is the very one that Skylane's engine runs, as `bench.peers.rig.workload` writes it.
"""

import math
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

GRAPH_VARIABLE = "SKYLANE_PEER_GRAPH"  # Of a server's environment: the graph's file.
SHAPE_VARIABLE = "SKYLANE_PEER_SHAPE"  # And what it takes, H×W×3: "608x968x3".
MODEL = "road"  # Its name where a server wants one.
INPUT, MASK_OUTPUT, TOOK_OUTPUT = "data", "mask", "inference_ns"  # Of the Open Inference Protocol's calls.
INFERENCE_HEADER = "Inference-Ns"  # Of the other HTTP servers' answers.
IMAGES = "skylane_images:0"  # uint8 N×H×W×3.
MASK = "mask:0"  # uint8 N×H×W.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Read when the library is loaded.


class NotAPictureError(ValueError):
    """Bytes that are no picture."""


class Function:
    """The graph in a session with TensorFlow's own settings, on the processor; several may call it at a time."""

    def __init__(self, path: Path | None = None) -> None:
        """Load the frozen graph at `path`; None: where the environment's GRAPH_VARIABLE points."""
        tf: Any = import_module("tensorflow")  # Any: TensorFlow ships no types.
        definition = tf.compat.v1.GraphDef()
        definition.ParseFromString(Path(path or os.environ[GRAPH_VARIABLE]).read_bytes())
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(definition, name="")
        self._shape = tuple(graph.get_tensor_by_name(IMAGES).shape.as_list()[1:])
        session = tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))
        self._run = session.make_callable(MASK, feed_list=[IMAGES])

    def answer(self, data: bytes | NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
        """As `infer`, of the bytes of a call.

        Raises:
            NotAPictureError: as `picture_of`.
        """
        return self.infer(picture_of(data, self._shape))

    def infer(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
        """The mask, uint8 H×W, of a picture, uint8 H×W×3 in the graph's colour order; and the nanoseconds it took."""
        begun_ns = time.perf_counter_ns()
        masks = self._run(image[None])
        took_ns = time.perf_counter_ns() - begun_ns
        return masks[0], took_ns


def picture_of(data: bytes | NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The picture, uint8 of `shape`, in a call's bytes: its pixels where they are as many, else a JPEG of any size.

    One of another size is stretched, by the area of its pixels where no axis grows and cubic otherwise, as
    `shared.imaging.geometry.apply` does it. Neither is a part of an inference's nanoseconds.

    Raises:
        NotAPictureError: they are neither.
    """
    values = np.frombuffer(data, np.uint8)
    if values.size == math.prod(shape):
        return values.reshape(shape)
    picture = _decoded(values)
    if picture is None:
        raise NotAPictureError(f"{values.size} bytes that are no picture: {shape} is wanted")
    if picture.shape != shape:
        height, width, _ = shape
        shrinks = picture.shape[0] >= height and picture.shape[1] >= width
        way = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        picture = np.asarray(cv2.resize(picture, (width, height), interpolation=way), np.uint8)
    return picture


def _decoded(values: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """As Skylane decodes, so that the decoder makes no difference."""
    picture = cv2.imdecode(values, cv2.IMREAD_COLOR_RGB) if values.size else None
    return None if picture is None else np.asarray(picture, np.uint8)
