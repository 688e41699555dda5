"""TorchServe: one worker process with the network as TorchScript, because TorchServe loads no TensorFlow graph.

TorchServe loads this file from a folder without any other file.
"""

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from bench.peers.function import GRAPH_VARIABLE, INFERENCE_HEADER, SHAPE_VARIABLE, picture_of

torch: Any = import_module("torch")  # Any, because mypy needs minutes for the types of torch.


class Road:
    """The network behind POST /predictions/road."""

    def initialize(self, _context: Any) -> None:
        """Loads the network in the worker process."""
        self._network = torch.jit.load(os.environ[GRAPH_VARIABLE]).eval()
        self._shape = tuple(map(int, os.environ[SHAPE_VARIABLE].split("x")))

    def handle(self, calls: Sequence[Mapping[str, bytes]], context: Any) -> list[bytes]:
        """Returns the bytes of the masks; the inference time in nanoseconds becomes a header."""
        masks = []
        for place, call in enumerate(calls):
            picture = torch.from_numpy(picture_of(call["body"], self._shape)[None])
            begun_ns = time.perf_counter_ns()
            with torch.inference_mode():
                (mask,) = self._network(picture)
            took_ns = time.perf_counter_ns() - begun_ns
            context.set_response_header(place, INFERENCE_HEADER, str(took_ns))
            masks.append(mask.numpy().tobytes())
        return masks
