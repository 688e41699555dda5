"""Child process that reproduces how the first system measured "post-processing takes 90 %".

That system took the time of the prediction when TensorFlow's call returned. On a GPU, the call returns as soon as the work is
queued: the prediction seems to take almost no time, and the post-processing, which first reads the values, waits for it. On a
CPU the call is synchronous by default, and the times are right. With asynchronous execution, TensorFlow queues the operations
of a CPU as well, which shows the same effect without a GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from bench.baselines.mqtt.images import encode_mask, palette_of
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.runtime import tf
from ops.processes.child import serve
from shared.inference.model import warmup_images
from shared.models.repository import Repository

_WARM_UP = 3


class Stopwatch:
    """Measures prediction and post-processing as the original did: by the time at which calls return."""

    def __init__(self, models: str, model: str) -> None:
        stored = Repository(Path(models)).find(model)
        manifest, card = stored.manifest, stored.card()
        (head,) = manifest.heads.values()
        graph = read_graph(stored.file())
        wrapped = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(graph, name=""), [])
        self._predict = wrapped.prune(manifest.input.tensor, head.tensor)
        self._palette = palette_of(card.labels)
        self._image = tf.constant(warmup_images(card.height, card.width, 1))
        for _ in range(_WARM_UP):
            self.time({"queued": False})

    def time(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Infers one image; `queued`: whether TensorFlow executes asynchronously, as on a GPU."""
        tf.config.experimental.set_synchronous_execution(not request["queued"])
        begin_ns = perf_counter_ns()
        result = self._predict(self._image)
        predicted_ns = perf_counter_ns()
        mask = np.asarray(result)  # Waits until the values are computed.
        encode_mask(mask[0].astype(np.uint8, copy=False), self._palette)
        end_ns = perf_counter_ns()
        tf.config.experimental.set_synchronous_execution(True)
        return {"prediction": (predicted_ns - begin_ns) / 1e6, "postprocessing": (end_ns - predicted_ns) / 1e6}


if __name__ == "__main__":
    serve(lambda **settings: Stopwatch(**settings).time)
