"""The engine of TensorFlow: frozen graphs, SavedModels and Keras files, each read into one graph that a session runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cloud.engines.engine import EngineError, InferenceError, Outputs, Placement
from cloud.engines.tensorflow.frozen_graph import read_frozen_graph
from cloud.engines.tensorflow.graph_rewriting import with_free_batch
from cloud.engines.tensorflow.graph_session import GraphSession
from cloud.engines.tensorflow.graphdef import FrozenModel
from cloud.engines.tensorflow.keras_model import read_frozen_keras
from cloud.engines.tensorflow.library import choose_device
from cloud.engines.tensorflow.saved_model import read_frozen_signature
from cloud.models.agreement import AgreementError, agreement
from cloud.models.manifest import Manifest
from cloud.models.warmup_images import pictures

READERS: dict[str, Callable[[Path, Manifest], FrozenModel]] = {
    "frozen_graph": read_frozen_graph,
    "saved_model": read_frozen_signature,
    "keras": read_frozen_keras,
}
_SAME = 0.9999  # Of labels: a library may sum in another order for another batch, and round otherwise.
_CLOSE = 1e-2  # Of a head's largest number: the same for numbers. What mixes pictures moves them by more.


class TensorFlowEngine(GraphSession):
    """Runs whatever TensorFlow saves. The manifest's tensors: a graph's ("input:0"), a signature's keys, a Keras model's names.

    Where more frames may go through it at once than were baked into the graph, the batch is set free if that is sound.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        choose_device(placement.device)  # Sets the GPUs' memory up, which nothing can once a model is loaded.
        frozen = READERS[manifest.format](path, manifest)
        super().__init__(frozen, manifest, placement)
        if self.batch_size is not None and self.batch_size < manifest.batching.max_size:
            self._set_free(frozen, manifest, placement)

    def _set_free(self, frozen: FrozenModel, manifest: Manifest, placement: Placement) -> None:
        """Take the graph with a free batch, if it answers a batch as the baked one answers each picture."""
        assert self.batch_size is not None
        given = pictures(manifest.input.height, manifest.input.width, self.batch_size + 1)
        alone = [self.infer(np.repeat(picture[np.newaxis], self.batch_size, axis=0)) for picture in given]
        wanted = {head: np.stack([each[head][0] for each in alone]) for head in alone[0]}
        for reshapes in (False, True):
            graph = with_free_batch(frozen.graph, frozen.input_tensor, reshapes=reshapes)
            try:
                free = GraphSession(replace(frozen, graph=graph), manifest, placement)
            except EngineError:
                continue
            if _answers(free, given, wanted, manifest):
                self.close()
                self._session, self._run, self.batch_size = free._session, free._run, None  # noqa: SLF001 - its own class.
                return
            free.close()


def _answers(
    session: GraphSession, given: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", wanted: Outputs, manifest: Manifest
) -> bool:
    """Whether a batch of pictures gets the wanted answers."""
    try:
        answers = session.infer(given)
    except InferenceError:
        return False
    try:
        if agreement(manifest, wanted, answers) < _SAME:
            return False
    except AgreementError:  # Other shapes.
        return False
    # The most probable class alone would not tell that a mean is taken over the batch.
    return all(
        np.allclose(answers[head], values, rtol=0.0, atol=_CLOSE * float(np.max(np.abs(values), initial=0.0)))
        for head, values in wanted.items()
        if values.dtype.kind == "f"
    )
