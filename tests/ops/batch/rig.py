"""Parts of the tests of batches: bags of noise, and runs with a small model whose processes start fast."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ops.batch.executor import BagOutcome, BagProgress
from ops.batch.library import Library
from ops.batch.plan import BatchPlan
from ops.batch.run import BatchResult, run_batch
from ops.batch.settings import BatchSettings
from rosbag_tools.writer import BagWriter

MODELS = Path(__file__).parents[3] / "models"
MODEL = "road-tiny"
HEIGHT, WIDTH = 64, 96
CAMERAS = ("/front/image_raw", "/rear/image_raw")


def write_bag(path: Path, frames: int = 3, seed: int = 0, cameras: tuple[str, ...] = CAMERAS[:1]) -> Path:
    """Writes a bag of Bayer noise; `frames` is the number per camera."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    with BagWriter(path) as bag:
        for index in range(frames):
            for camera, topic in enumerate(cameras):
                stamp_ns = 10**18 + index * 10**8 + camera
                pixels = random.integers(0, 256, (HEIGHT, WIDTH), np.uint8)
                bag.write_image(topic, pixels, "bayer_rggb8", stamp_ns, stamp_ns, "camera")
    return path


def write_library(folder: Path, bags: int = 3, frames: int = 3) -> Path:
    """Writes bags of growing length: single files and folders, some in sub-folders."""
    for number in range(bags):
        name = (f"day/{number}.mcap", f"{number}.bag", f"folder-{number}")[number % 3]
        write_bag(folder / name, frames + number, seed=number)
    return folder


class Watcher:
    """Records what a batch reports; `on_frame` is called with every progress."""

    def __init__(self, on_frame: Callable[[BagProgress], None] = lambda _: None) -> None:
        self.library: Library | None = None
        self.planned = BatchPlan()
        self.outcomes: list[BagOutcome] = []
        self._on_frame = on_frame

    def begin(self, library: Library, planned: BatchPlan) -> None:
        """See BatchWatcher."""
        self.library, self.planned = library, planned

    def advance(self, progress: BagProgress) -> None:
        """See BatchWatcher."""
        self._on_frame(progress)

    def end(self, outcome: BagOutcome) -> None:
        """See BatchWatcher."""
        self.outcomes.append(outcome)


def run(
    library: Path, out: Path, watcher: Watcher | None = None, *, verify: bool = False, **settings: Any
) -> BatchResult:
    """Runs a batch, by default in one process."""
    defaults = {"library": library, "out": out, "model": MODEL, "repository": MODELS, "processes": 1}
    return run_batch(BatchSettings.model_validate(defaults | settings), watcher or Watcher(), verify=verify)


def contents(out: Path) -> dict[str, bytes]:
    """Returns the content of every file of the results; nothing unfinished may be left."""
    files = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert not [name for name in files if name.startswith(".staging")]
    return files
