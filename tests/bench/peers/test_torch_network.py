"""The PyTorch version of road-small, compared with the TensorFlow graph of the repository."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.models.loader import ModelLoader
from shared.inference.model import warmup_images
from shared.models.manifest import Placement
from shared.models.repository import Repository

MODELS = Path("models")


@pytest.fixture(name="torch")
def _torch() -> Any:
    if os.environ.get("SKYLANE_REQUIRE_TORCH"):
        return import_module("torch")  # Fail instead of skip if PyTorch is required.
    return pytest.importorskip("torch")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_network_gives_the_labels_of_the_graph(torch: Any, tmp_path: Path) -> None:
    """TorchServe cannot load a TensorFlow graph, but all peers must do the same work to be comparable."""
    from bench.peers.torch_network import write_torchscript  # noqa: PLC0415  The module imports PyTorch.

    with ModelLoader(Repository(MODELS), Placement(device="cpu"), engine="tensorflow").open("road-small") as model:
        sides = model.card.height, model.card.width
        image = warmup_images(*sides, 1)
        expected = model.predict(image)
    write_torchscript(MODELS, "road-small", tmp_path / "net.pt", sides)
    found = torch.jit.load(str(tmp_path / "net.pt"))(torch.from_numpy(image)).numpy()
    assert found.shape == expected.shape
    assert np.mean(found == expected) > 0.999


def test_another_model_is_refused(torch: Any, tmp_path: Path) -> None:
    """Otherwise peers would be compared with different models."""
    from bench.peers.torch_network import UnknownNetworkError, write_torchscript  # noqa: PLC0415  As above.

    assert torch
    with pytest.raises(UnknownNetworkError, match="road-large is not written in PyTorch"):
        write_torchscript(MODELS, "road-large", tmp_path / "net.pt", (8, 8))
