from pathlib import Path

import numpy as np
import pytest

from bench.baselines.serving.clients import SCORES, GrpcClient, LapTimer
from bench.baselines.serving.plain_serving_model import as_it_lies
from bench.load.playback import BenchError
from cloud.models.repository import Repository
from tests.support import tiny_models
from tests.support.gateway import open_gateway


def test_scores_that_come_back_as_lists_give_the_same_mask(tmp_path: Path) -> None:
    """What the first system's clients did slowly they did rightly: only then is it the time of the same thing."""
    name = tiny_models.write(tmp_path, "segmentation")
    picture = tiny_models.noise(1)[0]
    with Repository(tmp_path).load(name) as whole:
        truth = whole.predict(picture[None])[0]
    with Repository(as_it_lies(tmp_path, name, tmp_path / "bare")).load(name) as model, open_gateway(model) as doors:
        client = GrpcClient(doors.grpc, name, SCORES)
        timer = LapTimer()
        assert np.array_equal(client.predict(picture, timer).mask, truth)
        assert timer.took_ms["arg_max"] > 0
        client.close()


def test_a_model_without_scores_is_named(models: Path, tmp_path: Path) -> None:
    """With what to choose instead, before a worker is started."""
    with pytest.raises(BenchError, match=r"tiny gives no scores .* street-lite"):
        as_it_lies(models, "tiny", tmp_path)
