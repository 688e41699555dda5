"""Frozen graphs: a binary GraphDef whose variables are constants."""

from pathlib import Path

from cloud.engines.tensorflow.graphdef import FrozenModel, read_graph
from cloud.models.manifest import Manifest


def read_frozen_graph(path: Path, manifest: Manifest) -> FrozenModel:
    """Read a `.pb`; the manifest's tensors are the graph's: "input:0", "prediction:0".

    Raises:
        EngineError: as `cloud.engines.tensorflow.graphdef.read_graph`.
    """
    outputs = {head: section.tensor for head, section in manifest.heads.items()}
    return FrozenModel(read_graph(path), manifest.input.tensor, outputs, path)
