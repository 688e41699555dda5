from pathlib import Path

import numpy as np
import pytest

from bench.tensorflow_variants import VARIANTS, TensorFlowPlan, VariantProcess, groups, open_variant
from ops.processes.child import BenchError
from shared.inference.model import warmup_images


def test_a_variant_that_takes_too_long_is_stopped_with_a_reason(tmp_path: Path) -> None:
    """XLA takes seconds per image; the other variants must not wait for it."""
    plan = TensorFlowPlan(Path("models"), limit_s=0.01)
    images = tmp_path / "images.npy"
    np.save(images, warmup_images(608, 968, 1))
    message = r"Session\.run: stopped: .* not enough to warm up \(no image was"
    with VariantProcess("Session.run", plan, images, tmp_path) as process, pytest.raises(BenchError, match=message):
        process.warm_up()


def test_a_variant_that_fails_reports_its_last_error(tmp_path: Path) -> None:
    """The failure of a variant is a result and does not end the benchmark."""
    with (
        VariantProcess("Session.run", TensorFlowPlan(Path("models")), tmp_path / "missing.npy", tmp_path) as process,
        pytest.raises(BenchError, match=r"Session\.run .*missing\.npy"),
    ):
        process.warm_up()


@pytest.mark.parametrize("name", ["tf.function", "arg max by TopK", "means by AvgPool"])
def test_a_variant_computes_the_engines_mask(name: str) -> None:
    """Only variants with the same result can be compared."""
    images = warmup_images(608, 968, 1)
    engine = open_variant(VARIANTS["Skylane's engine"], Path("models"), "road-small")
    assert np.mean(open_variant(VARIANTS[name], Path("models"), "road-small")(images) == engine(images)) > 0.9999


def test_compiled_variants_run_in_a_group_of_their_own() -> None:
    """The compiler uses every core for a minute, so that other variants would exceed their limit."""
    *others, last = groups(list(VARIANTS))
    assert last == ["XLA auto-clustering", "XLA, the whole graph"]
    assert sorted(name for group in (*others, last) for name in group) == sorted(VARIANTS)
