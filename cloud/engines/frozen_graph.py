"""The engine of frozen graphs: a binary GraphDef whose variables are constants."""

from pathlib import Path

from cloud.engines.engine import Placement
from cloud.engines.graph import FrozenModel, read_graph
from cloud.engines.graph_session import GraphSession
from cloud.manifest import Manifest


class FrozenGraphEngine(GraphSession):
    """Runs a `.pb`. The manifest's tensors are the graph's: "input:0", "prediction:0"."""

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        frozen = FrozenModel(read_graph(path), manifest.input.tensor, manifest.output.tensor, path)
        super().__init__(frozen, manifest, placement)
