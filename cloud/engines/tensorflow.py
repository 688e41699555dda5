"""The engine of TensorFlow: frozen graphs, SavedModels and Keras files, each read into one graph that a session runs."""

from collections.abc import Callable
from pathlib import Path

from cloud.engines.engine import Placement
from cloud.engines.frozen_graph import read_frozen_graph
from cloud.engines.graph import FrozenModel
from cloud.engines.graph_session import GraphSession
from cloud.engines.keras_model import read_frozen_keras
from cloud.engines.saved_model import read_frozen_signature
from cloud.engines.tensorflow_device import choose
from cloud.manifest import Manifest

_READERS: dict[str, Callable[[Path, Manifest], FrozenModel]] = {
    "frozen_graph": read_frozen_graph,
    "saved_model": read_frozen_signature,
    "keras": read_frozen_keras,
}


class TensorFlowEngine(GraphSession):
    """Runs whatever TensorFlow saves. The manifest's tensors: a graph's ("input:0"), a signature's keys, a Keras model's names."""

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        choose(placement.device)  # Sets the GPUs' memory up, which nothing can once a model is loaded.
        super().__init__(_READERS[manifest.format](path, manifest), manifest, placement)
