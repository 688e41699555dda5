"""A real run to read, to hold against its promises and to damage."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.console import Console

from bench.load.null_worker import NullWorker, NullWorkerSettings
from edge.cli import run
from edge.config import EdgeConfig
from edge.pacing.arrivals import Arrivals

_FRAMES = 40
_HEIGHT, _WIDTH = 16, 24


@contextmanager
def _own_signals() -> Iterator[None]:
    """The command line installs handlers; the tests' come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def consistent_run(tmp_path_factory: pytest.TempPathFactory, embedded_url: str) -> Path:
    """The folder of a run of 40 frames, some answered and some dropped. Leave it as it is."""
    folder = tmp_path_factory.mktemp("sound")
    pictures = folder / "pictures"
    pictures.mkdir()
    noise = np.random.default_rng(4).integers(0, 256, (_FRAMES, _HEIGHT, _WIDTH, 3), np.uint8)
    for index, picture in enumerate(noise):
        cv2.imwrite(str(pictures / f"{index:04d}.png"), picture)
    settings = NullWorkerSettings(worker="sound-worker", model="sound-model", height=_HEIGHT, width=_WIDTH, think_ms=20)
    config = EdgeConfig(
        broker=embedded_url,
        vehicle="car",
        model="sound-model",
        arrivals=Arrivals.UNIFORM,
        arrival_rate_hz=200,  # Four times what the worker answers.
        window=1,
        out=folder / "run",
        sinks=(),
    )
    with _own_signals(), NullWorker(embedded_url, settings) as worker:
        assert worker.wait_until_ready()
        beside = {"worker/sound-worker": os.getpid()}  # It is threads of this process.
        assert run(str(pictures), config, Console(quiet=True), beside=beside) == 0
    return folder / "run"


@pytest.fixture
def damaged_run(consistent_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(consistent_run, tmp_path / "run"))
