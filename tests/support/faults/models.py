"""Models that fail on certain frames, and the images that make them fail."""

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from shared.imaging.opencv import cv2
from tests.support.faults.hostile.trigger_pixels import Mark
from tests.support.faults.rig import HEIGHT, ROOT, WIDTH, Rig, RigError, UnavailableError


def make_model(rig: Rig, module: str, *arguments: str) -> Path:
    """Runs a module that writes the model `nasty` for the rig's images; returns its model repository.

    Raises:
        RigError: the module failed.
    """
    models = rig.folder / "models"
    rig.say("making the model")
    command = [sys.executable, "-m", module, str(models), str(HEIGHT), str(WIDTH), *arguments]
    made = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if made.returncode:
        raise RigError(f"the model could not be made: {made.stderr.strip().splitlines()[-1]}")
    return models


def marked_pictures(rig: Rig, name: str, marks: Mapping[int, Mark], count: int = 30) -> Path:
    """Creates a folder of images of noise, some with trigger pixels."""
    folder = rig.pictures(count, name=f"pictures-{name}")
    for index, mark in marks.items():
        path = str(folder / f"{index:05d}.png")
        picture = cv2.imread(path)
        assert picture is not None
        picture[0, 0] = mark.pixel[::-1]  # OpenCV writes BGR.
        cv2.imwrite(path, picture)
    return folder


def make_local_model(rig: Rig, *, turns: int = 0) -> Path:
    """Returns a model repository with a model for vehicles that computes the labels that null workers answer.

    `turns`: further work of an inference.

    Raises:
        UnavailableError: a package is missing.
    """
    for package, extra in (("onnxruntime", "local"), ("onnx", "convert")):
        if find_spec(package) is None:
            raise UnavailableError(f"no {package}: pip install 'skylane[{extra}]'")
    return make_model(rig, "tests.support.faults.hostile.nasty_onnx", str(turns))
