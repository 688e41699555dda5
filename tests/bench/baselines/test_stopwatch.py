from pathlib import Path

import numpy as np
import pytest

from bench.baselines import first_system_mqtt
from bench.baselines.first_system_mqtt import Stopwatch
from bench.baselines.images import Palette, encode_mask
from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from shared.imaging.codec import Mask
from shared.inference.model import warmup_images
from shared.models.repository import Repository


def test_queued_and_synchronous_execution_compute_the_same_mask(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both measurements must include the whole inference."""
    masks = []

    def keep(mask: Mask, palette: Palette) -> bytes:
        masks.append((mask.copy(), tf.config.experimental.get_synchronous_execution()))
        return encode_mask(mask, palette)

    watch = Stopwatch(str(models), "tiny")
    monkeypatch.setattr(first_system_mqtt, "encode_mask", keep)
    for queued in (False, True):
        times = watch.time({"queued": queued})
        assert set(times) == {"prediction", "postprocessing"}
    with ModelLoader(Repository(models)).open("tiny") as model:
        expected = model.predict(warmup_images(64, 96, 1))[0]
    assert [np.array_equal(mask, expected) for mask, _ in masks] == [True, True]
    assert [is_synchronous for _, is_synchronous in masks] == [True, False]
    assert tf.config.experimental.get_synchronous_execution()  # Later tests run synchronously.
