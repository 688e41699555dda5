"""A worker of a tiny model, and pictures whose masks the clients in other languages must bring back bit for bit."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cloud.models.model import Model
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.opencv import cv2
from tests.pipeline.conftest import model, models
from tests.pipeline.rig import Mask, direct, noise

__all__ = ["model", "models"]

CLIENTS = Path(__file__).parents[2] / "clients"
BUILD = Path(__file__).parents[2] / "build" / "clients"  # Kept from run to run: compiling takes seconds.


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in a file, and the mask that the model makes of it when it is called directly."""

    path: Path
    mask: Mask


@pytest.fixture
def picture(model: Model, tmp_path: Path) -> Callable[..., Picture]:
    """Makes a picture of noise of a size, a PNG or a JPEG."""

    def make(height: int, width: int, suffix: str = ".jpg") -> Picture:
        path = tmp_path / f"picture-{height}-{width}{suffix}"
        assert cv2.imwrite(str(path), noise(height, (height, width, 3)))
        return Picture(path, direct_mask(model, path))

    return make


def direct_mask(model: Model, path: Path) -> Mask:
    """Decoded and resized as the model's card says, and inferred, without any journey."""
    card, data = model.card, path.read_bytes()
    shape = image_codecs.image_size(data)
    codec = "png" if path.suffix == ".png" else "jpeg"
    decoded = image_codecs.decode(data, codec, Layout.RGB8, shape, ImageLimits(), Layout(card.layout))
    plan = geometry.plan(card.resize, *shape[:2], card.height, card.width)
    return direct(model, geometry.apply(decoded, plan))


def read_pgm(path: Path) -> Mask:
    """The class ids in a grey PGM."""
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert mask is not None
    return np.asarray(mask, np.uint8)


def need(*programs: str) -> None:
    """Skip where a client cannot be built or run."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here")


def run(*command: str | Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout_s, check=False)
