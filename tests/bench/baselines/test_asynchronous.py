from pathlib import Path

import numpy as np
import pytest

from bench.baselines import asynchronous
from bench.baselines.asynchronous import Stopwatch
from bench.baselines.mqtt.palette import Palette, painted
from cloud.engines.tensorflow.library import tf
from cloud.models.repository import Repository
from cloud.models.warmup_images import warmup_images
from shared.imaging.mask_codecs import Mask


def test_the_same_mask_is_painted_whether_or_not_work_is_queued(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stopwatches must time the same work: a queued call whose answer nobody waited for would prove nothing."""
    masks = []

    def keep(mask: Mask, palette: Palette) -> bytes:
        masks.append((mask.copy(), tf.config.experimental.get_synchronous_execution()))
        return painted(mask, palette)

    watch = Stopwatch(models, "tiny")
    monkeypatch.setattr(asynchronous, "painted", keep)
    for queued in (False, True):
        times = watch.time({"queued": queued})
        assert set(times) == {"prediction", "postprocessing"}
    with Repository(models).load("tiny") as model:
        truth = model.predict(warmup_images(64, 96, 1))[0]
    assert [np.array_equal(mask, truth) for mask, _ in masks] == [True, True]
    assert [is_synchronous for _, is_synchronous in masks] == [True, False]
    assert tf.config.experimental.get_synchronous_execution()  # Whatever runs next in this process is timed rightly.
