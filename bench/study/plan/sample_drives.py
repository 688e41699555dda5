"""The source that the vehicles of a cell play: a bag, or a synthetic drive created once for each resolution."""

from pathlib import Path

import numpy as np

from bench.harness.environment import SEED, sample_bag
from bench.study.plan.axes import width_and_height
from bench.study.plan.cell import StudyCell
from bench.study.plan.scenarios import SCENARIOS, Footage
from bench.study.plan.study_plan import StudyPlan
from rosbag_tools.drive.scene import Drive
from shared.imaging.image_files import write_png
from shared.imaging.opencv import cv2

# Relative width and height of images with mixed sizes: full, smaller, half, wide and tall.
_SIZES = ((1.0, 1.0), (0.75, 0.75), (0.5, 0.5), (1.0, 0.625), (0.5, 1.0))
_STEP_S = 0.5  # Time in the drive between two images of mixed sizes.


def source_of(plan: StudyPlan, cell: StudyCell) -> Path:
    """Returns the source that the vehicles of a cell play; a synthetic drive is created under `runs/bags`."""
    return plan.bag or footage(SCENARIOS[cell.scenario].footage, cell.resolution, plan.drive_frames)


def footage(kind: Footage, resolution: str, frames: int) -> Path:
    """Returns a source to play: a bag of Bayer frames, or a folder of PNG images for mixed sizes.

    `frames` is the number of frames of the drive; Footage.ONE uses only its first frame.
    """
    width, height = width_and_height(resolution)
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
        image = cv2.resize(drive.render(index * _STEP_S).rgb, size, interpolation=cv2.INTER_AREA)
        write_png(draft / f"{index:05d}.png", np.ascontiguousarray(image))
    draft.rename(folder)
    return folder
