"""What the vehicles of a study see: the synthetic drive, made once for each resolution and kept under `runs/bags`."""

from pathlib import Path

import numpy as np

from bench.harness.environment import SEED, sample_bag
from bench.study.plan.axes import sides
from bench.study.plan.scenarios import Footage
from rosbag_tools.drive.scene import Drive
from shared.imaging.image_files import write_png
from shared.imaging.opencv import cv2

# Of the camera's width and height: as the camera gives it, smaller, much smaller, broad, and tall.
_SIZES = ((1.0, 1.0), (0.75, 0.75), (0.5, 0.5), (1.0, 0.625), (0.5, 1.0))
_STEP_S = 0.5  # Between two pictures of mixed sizes.


def footage(kind: Footage, resolution: str, frames: int) -> Path:
    """A source to play: a bag of Bayer frames, or for mixed sizes a folder of PNG pictures.

    `frames`: of the drive; the same image is the drive's first frame.
    """
    width, height = sides(resolution)
    match kind:
        case Footage.ONE:
            return sample_bag(1, width=width, height=height)
        case Footage.DRIVE:
            return sample_bag(frames, width=width, height=height)
        case Footage.MIXED:
            return _mixed(width, height, frames)


def _mixed(width: int, height: int, frames: int) -> Path:
    folder = Path("runs") / "bags" / f"mixed-{SEED}-{frames}-{width}x{height}"
    if folder.exists():
        return folder
    draft = folder.with_name(f"{folder.name}.part")
    draft.mkdir(parents=True, exist_ok=True)
    drive = Drive(SEED, width=width, height=height)
    for index in range(frames):
        across, down = _SIZES[index % len(_SIZES)]
        size = round(width * across), round(height * down)
        picture = cv2.resize(drive.render(index * _STEP_S).rgb, size, interpolation=cv2.INTER_AREA)
        write_png(draft / f"{index:05d}.png", np.ascontiguousarray(picture))
    draft.rename(folder)
    return folder
