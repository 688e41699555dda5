"""A real run, and a copy of it that tests may damage."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.console import Console

from analysis.logs.audit import audit
from edge.config import Arrivals, EdgeConfig
from edge.run import run
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from tests.support.synthetic_run import SyntheticRunPlan, write_run

_FRAMES = 40
_HEIGHT, _WIDTH = 16, 24


def problems_of(folder: Path) -> list[str]:
    """Returns the problems that an audit finds, as text without the folder."""
    return [str(problem).removeprefix(f"{folder}/") for problem in audit(folder)]


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restores the signal handlers that the command line replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def consistent_run(tmp_path_factory: pytest.TempPathFactory, embedded_url: str) -> Path:
    """The folder of a run of 40 frames, some answered and some dropped. Tests must not change it."""
    folder = tmp_path_factory.mktemp("sound")
    images = folder / "images"
    images.mkdir()
    noise = np.random.default_rng(4).integers(0, 256, (_FRAMES, _HEIGHT, _WIDTH, 3), np.uint8)
    for index, image in enumerate(noise):
        cv2.imwrite(str(images / f"{index:04d}.png"), image)
    settings = NullWorkerSettings(worker="sound-worker", model="sound-model", height=_HEIGHT, width=_WIDTH, think_ms=20)
    config = EdgeConfig(
        broker=embedded_url,
        vehicle="car",
        model="sound-model",
        arrivals=Arrivals.UNIFORM,
        arrival_rate_hz=200,  # Four times the worker's capacity.
        window=1,
        out=folder / "run",
        sinks=(),
    )
    with _own_signals(), NullWorkerProcess(embedded_url, settings) as worker:
        beside = {"worker/sound-worker": worker.pid}
        assert run(str(images), config, Console(quiet=True), sampled_processes=beside) == 0
    return folder / "run"


@pytest.fixture
def gated_run(tmp_path: Path) -> Path:
    """The folder of a run of 200 frames, of which about half are reused or answered locally. Tests may damage it."""
    return write_run(tmp_path / "gated", SyntheticRunPlan(frames=200, reused=0.4, local=0.3))


@pytest.fixture
def damaged_run(consistent_run: Path, tmp_path: Path) -> Path:
    """A copy of the run that the test may damage."""
    return Path(shutil.copytree(consistent_run, tmp_path / "run"))
