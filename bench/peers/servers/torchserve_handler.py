"""TorchServe: one worker process with the same network as TorchScript, for TorchServe takes no TensorFlow graph.

TorchServe loads this file by itself, from a folder that holds nothing else.
"""

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from bench.peers.rig.function import GRAPH_VARIABLE, INFERENCE_HEADER, SHAPE_VARIABLE, picture_of

torch: Any = import_module("torch")  # Any: its types take mypy minutes.


class Road:
    """The network behind POST /predictions/road."""

    def initialize(self, _context: Any) -> None:
        """Load the network, in the worker's process."""
        self._network = torch.jit.load(os.environ[GRAPH_VARIABLE]).eval()
        self._shape = tuple(map(int, os.environ[SHAPE_VARIABLE].split("x")))

    def handle(self, calls: Sequence[Mapping[str, bytes]], context: Any) -> list[bytes]:
        """The masks' bytes; the nanoseconds each took become a header."""
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
