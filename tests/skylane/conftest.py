"""The small model of the end-to-end tests, and two synthetic runs."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import model, models
from tests.support.synthetic_run import SyntheticRunPlan, write_run

__all__ = ["model", "models"]
FRAMES = 150


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests must not change it."""
    return write_run(tmp_path_factory.mktemp("runs") / "first", SyntheticRunPlan(frames=FRAMES))


@pytest.fixture(scope="session")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the same frames with a slower engine; tests must not change it."""
    plan = SyntheticRunPlan(frames=FRAMES, seed=1, session="50e551014ab1", slower_ms=40)
    return write_run(tmp_path_factory.mktemp("runs") / "slower", plan)
