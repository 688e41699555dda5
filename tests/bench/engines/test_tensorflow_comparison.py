from pathlib import Path

import numpy as np
import pytest

from bench.engines.tensorflow_comparison import Plan, Runner, groups
from bench.engines.tensorflow_variants import WAYS, opened
from bench.load.playback import BenchError
from cloud.models.warmup_images import pictures


def test_a_way_that_takes_too_long_is_given_up_and_says_so(tmp_path: Path) -> None:
    """XLA takes seconds a picture: the table of the others must not wait for it."""
    plan = Plan(Path("models"), limit_s=0.01)
    shown = tmp_path / "pictures.npy"
    np.save(shown, pictures(608, 968, 1))
    with Runner("Session.run", plan, shown, tmp_path) as runner:
        with pytest.raises(BenchError, match=r"Session\.run: given up: .* too few to be warm \(nothing was"):
            runner.wait()
        runner.end()


def test_a_way_that_ends_tells_its_last_words(tmp_path: Path) -> None:
    """A way that TensorFlow refuses is a finding, not the end of the bench."""
    with (
        Runner("Session.run", Plan(Path("models")), tmp_path / "missing.npy", tmp_path) as runner,
        pytest.raises(BenchError, match=r"Session\.run: .*missing\.npy"),
    ):
        runner.wait()


@pytest.mark.parametrize("way", ["tf.function", "arg max by TopK", "means by AvgPool"])
def test_a_way_gives_the_engines_mask(way: str) -> None:
    """A way that computes something else would be no way to run this graph."""
    shown = pictures(608, 968, 1)
    engine = opened(WAYS["Skylane's engine"], Path("models"), "road-small")
    assert np.mean(opened(WAYS[way], Path("models"), "road-small")(shown) == engine(shown)) > 0.9999


def test_compilers_run_apart_from_the_others() -> None:
    """They take every core for a minute: ways that start beside them would be given up for no fault of theirs."""
    *others, last = groups(list(WAYS))
    assert last == ["XLA auto-clustering", "XLA, the whole graph"]
    assert sorted(name for group in (*others, last) for name in group) == sorted(WAYS)
