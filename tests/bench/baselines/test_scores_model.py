from pathlib import Path

import numpy as np
import pytest

from bench.baselines.gateway_baselines import SCORES, GrpcClient, export_scores_model
from bench.baselines.images import Timer
from cloud.models.loader import ModelLoader
from ops.processes.child import BenchError
from shared.models.repository import Repository
from tests.support import tiny_models
from tests.support.gateway import open_gateway


def test_scores_returned_as_lists_give_the_same_mask(tmp_path: Path) -> None:
    """The exported model must do the same work as Skylane's."""
    name = tiny_models.write(tmp_path, "segmentation")
    image = tiny_models.noise(1)[0]
    with ModelLoader(Repository(tmp_path)).open(name) as complete:
        expected = complete.predict(image[None])[0]
    with (
        ModelLoader(Repository(export_scores_model(tmp_path, name, tmp_path / "bare"))).open(name) as model,
        open_gateway(model) as doors,
    ):
        client = GrpcClient(doors.grpc, name, SCORES)
        timer = Timer()
        assert np.array_equal(client.predict(image, timer)[0], expected)
        assert timer.durations_ms["arg_max"] > 0
        client.close()


def test_a_model_without_scores_is_rejected(models: Path, tmp_path: Path) -> None:
    """The error names a suitable model."""
    with pytest.raises(BenchError, match=r"tiny has no scores .* street-lite"):
        export_scores_model(models, "tiny", tmp_path)
