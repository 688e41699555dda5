from pathlib import Path

import numpy as np
import pytest

from bench.tensorflow_variants import VARIANTS, TensorFlowPlan, open_variant, variant_process
from ops.processes.child import BenchError
from shared.inference.model import warmup_images


def test_a_variant_that_fails_reports_its_last_error(tmp_path: Path) -> None:
    """The failure of a variant is a result and does not end the benchmark."""
    plan = TensorFlowPlan(Path("models"))
    with (
        variant_process("Session.run", plan, tmp_path / "missing.npy") as process,
        pytest.raises(BenchError, match=r"Session\.run .*missing\.npy"),
    ):
        process.wait()


@pytest.mark.parametrize("name", ["tf.function", "arg max by TopK", "means by AvgPool"])
def test_a_variant_computes_the_engines_mask(name: str) -> None:
    """Only variants with the same result can be compared."""
    images = warmup_images(608, 968, 1)
    engine = open_variant(VARIANTS["Skylane's engine"], Path("models"), "road-small")
    assert np.mean(open_variant(VARIANTS[name], Path("models"), "road-small")(images) == engine(images)) > 0.9999
