"""The function that every peer serves: JPEG decoding and a TensorFlow graph from pixels to class ids.

It imports only TensorFlow, NumPy and OpenCV, because each peer loads it in its own environment. The graph is the one
that Skylane's engine runs, written by `bench.peers.workload`.
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

GRAPH_VARIABLE = "SKYLANE_PEER_GRAPH"  # Environment variable with the graph's file.
MODEL = "road"  # Name of the model.
INPUT, MASK_OUTPUT, TOOK_OUTPUT = "data", "mask", "inference_ns"  # Tensors of Open Inference calls.
INFERENCE_HEADER = "Inference-Ns"  # Header in the responses of the other HTTP servers.
FLOOR_METHOD = "/floor.Road/Predict"  # Of the bare gRPC server.
TOOK_BYTES = 8  # Bytes before the mask in its responses: nanoseconds of the function, little-endian.
GRPC_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # A separate connection for each client.
)
IMAGES = "skylane_images:0"  # uint8 N×H×W×3.
MASK = "mask:0"  # uint8 N×H×W.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Read when the library is loaded.


class NotAPictureError(ValueError):
    """The bytes are not an image."""


class Function:
    """The graph in a session with TensorFlow's default settings on the CPU; thread-safe."""

    def __init__(self, path: Path | None = None) -> None:
        """Loads the frozen graph at `path`; None: the file in GRAPH_VARIABLE."""
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
        """Decodes the bytes of a call; returns the mask, uint8 H×W, and the time of the inference in nanoseconds.

        Raises:
            NotAPictureError: as `picture_of`.
        """
        image = picture_of(data, self._shape)
        begun_ns = time.perf_counter_ns()
        masks = self._run(image[None])
        took_ns = time.perf_counter_ns() - begun_ns
        return masks[0], took_ns


def picture_of(data: bytes | NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Returns the image, uint8 of `shape`, from raw pixels of that size or from a JPEG of any size.

    A JPEG of another size is stretched: area interpolation if no axis grows, otherwise cubic, as in
    `shared.imaging.geometry.apply`. Decoding is not part of the inference time.

    Raises:
        NotAPictureError: the bytes are neither.
    """
    values = np.frombuffer(data, np.uint8)
    if values.size == math.prod(shape):
        return values.reshape(shape)
    # Decodes as Skylane does, so that the decoder makes no difference.
    picture = cv2.imdecode(values, cv2.IMREAD_COLOR_RGB) if values.size else None
    if picture is None:
        raise NotAPictureError(f"{values.size} bytes that are no picture: {shape} is wanted")
    if picture.shape != shape:
        height, width, _ = shape
        shrinks = picture.shape[0] >= height and picture.shape[1] >= width
        way = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        picture = cv2.resize(picture, (width, height), interpolation=way)
    return np.asarray(picture, np.uint8)
