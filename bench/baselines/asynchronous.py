"""Where the first system's "post-processing takes 90 %" went (a reproduction of its stopwatch), run as an own process.

It stamped the end of the prediction when TensorFlow's call returned. On a GPU the call returns once the work is queued:
the prediction reads near zero, and whoever first asks for the numbers (the post-processing) waits for it. On a CPU the
call is synchronous by default, and the stopwatch is right. TensorFlow can be told to run a CPU's operations from a queue
too: that shows the same mechanism on a machine without a GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click
import numpy as np

from bench.baselines.child import serve
from bench.baselines.mqtt.palette import painted, palette_of
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.library import tf
from cloud.models.repository import Repository
from cloud.models.warmup_images import warmup_images

_WARM_UP = 3


class Stopwatch:
    """Times prediction and post-processing as the original did: by when calls return."""

    def __init__(self, models: Path, model: str) -> None:
        repository = Repository(models)
        manifest, card = repository.manifest(model), repository.card(model)
        (head,) = manifest.heads.values()
        graph = read_graph(repository.file(model))
        wrapped = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(graph, name=""), [])
        self._predict = wrapped.prune(manifest.input.tensor, head.tensor)
        self._palette = palette_of(card.labels)
        self._picture = tf.constant(warmup_images(card.height, card.width, 1))
        for _ in range(_WARM_UP):
            self.time({"queued": False})

    def time(self, errand: Mapping[str, Any]) -> Mapping[str, float]:
        """One picture; `queued`: whether TensorFlow queues what it is asked for, as it does on a GPU."""
        tf.config.experimental.set_synchronous_execution(not errand["queued"])
        begun_ns = perf_counter_ns()
        answer = self._predict(self._picture)
        predicted_ns = perf_counter_ns()
        mask = np.asarray(answer)  # Whoever wants numbers waits for them.
        painted(mask[0].astype(np.uint8, copy=False), self._palette)
        done_ns = perf_counter_ns()
        tf.config.experimental.set_synchronous_execution(True)
        return {"prediction": (predicted_ns - begun_ns) / 1e6, "postprocessing": (done_ns - predicted_ns) / 1e6}


@click.command()
@click.option("--models", type=click.Path(path_type=Path), required=True)
@click.option("--model", required=True)
def main(models: Path, model: str) -> None:
    """Time pictures as told, until the standard input ends."""
    serve(Stopwatch(models, model).time)


if __name__ == "__main__":
    main()
