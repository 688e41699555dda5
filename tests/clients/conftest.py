"""Images with their exact masks, for the tests of the example clients."""

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.opencv import cv2
from shared.inference.model import Model
from tests.pipeline.conftest import model, models
from tests.pipeline.rig import Mask, direct, noise
from tests.support.gateway import GatewayWorker, open_gateway

__all__ = ["model", "models"]

CLIENTS = Path(__file__).parents[2] / "clients"
BUILD = Path(__file__).parents[2] / "build" / "clients"  # Kept between runs: compiling takes seconds.


@dataclass(frozen=True, slots=True)
class SampleImage:
    """An image file, and its mask from a direct call of the model."""

    path: Path
    mask: Mask


@pytest.fixture
def make_image(model: Model, tmp_path: Path) -> Callable[..., SampleImage]:
    """Creates a PNG or JPEG with random pixels in a given size."""

    def make(height: int, width: int, suffix: str = ".jpg") -> SampleImage:
        path = tmp_path / f"image-{height}-{width}{suffix}"
        assert cv2.imwrite(str(path), noise(height, (height, width, 3)))
        return SampleImage(path, direct_mask(model, path))

    return make


@pytest.fixture
def gateway(model: Model) -> Iterator[GatewayWorker]:
    """A worker that serves the tiny model over HTTP and gRPC."""
    with open_gateway(model) as worker:
        yield worker


def direct_mask(model: Model, path: Path) -> Mask:
    """Decodes and resizes the image as the model card says, and calls the model directly."""
    card, data = model.card, path.read_bytes()
    shape = image_codecs.image_size(data)
    codec = "png" if path.suffix == ".png" else "jpeg"
    decoded = image_codecs.decode(data, codec, Layout.RGB8, shape, ImageLimits(), Layout(card.layout))
    plan = geometry.plan(card.resize, *shape[:2], card.height, card.width)
    return direct(model, geometry.apply(decoded, plan))


def read_pgm(path: Path) -> Mask:
    """Reads the class ids from a grey image."""
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert mask is not None
    return np.asarray(mask, np.uint8)


def need(*programs: str) -> None:
    """Skips the test if a program is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


def run(*command: str | Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Runs a program and captures its output; any exit code is accepted."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout_s, check=False)


@contextmanager
def build_folder(client: str) -> Iterator[Path]:
    """The folder in which a client is built, locked: parallel test processes share it, and one must not run half a file."""
    folder = BUILD / client
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{client}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def make(client: str, *flags: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Builds a client with its Makefile and returns the folder and the ended process."""
    with build_folder(client) as folder:
        return folder, run("make", "-C", CLIENTS / client, f"BUILD={folder}", *flags, timeout_s=300)
