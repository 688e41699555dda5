"""The source that the vehicles of a cell play: a bag, or a synthetic drive created once for each resolution."""

from pathlib import Path

import numpy as np

from analysis.study.axes import width_and_height
from analysis.study.scenarios import SCENARIOS, Footage
from analysis.study.study_plan import StudyCell, StudyPlan
from rosbag_tools.drive.recording import SEED, sample_bag
from rosbag_tools.drive.scene import Drive
from shared.imaging.image_files import write_png
from shared.imaging.opencv import cv2

# Relative width and height of images with mixed sizes: full, smaller, half, wide and tall.
_SIZES = ((1.0, 1.0), (0.75, 0.75), (0.5, 0.5), (1.0, 0.625), (0.5, 1.0))
_STEP_S = 0.5  # Time in the drive between two images of mixed sizes.


def source_of(plan: StudyPlan, cell: StudyCell, drive_seed: int) -> Path:
    """Returns the source that the vehicles of a cell play; a synthetic drive is created under `runs/bags`."""
    if plan.bag is not None:
        return plan.bag
    kind = SCENARIOS[cell.scenario].footage
    return footage(kind, cell.resolution, plan.drive_frames, seed=drive_seed, static_camera=plan.static_camera)


def footage(kind: Footage, resolution: str, frames: int, *, seed: int = SEED, static_camera: bool = False) -> Path:
    """Returns a source to play: a bag of Bayer frames, or a folder of PNG images for mixed sizes.

    `frames` is the number of frames of the drive; Footage.ONE uses only its first frame.
    """
    width, height = width_and_height(resolution)
    if kind is Footage.MIXED:
        kind_of_drive = "static-" if static_camera else ""
        folder = Path("runs") / "bags" / f"mixed-{kind_of_drive}{seed}-{frames}-{width}x{height}"
        return _mixed(folder, Drive(seed, width=width, height=height, static_camera=static_camera), frames)
    bag_frames = 1 if kind is Footage.ONE else frames
    return sample_bag(bag_frames, width=width, height=height, seed=seed, static_camera=static_camera)


def _mixed(folder: Path, drive: Drive, frames: int) -> Path:
    if folder.exists():
        return folder
    draft = folder.with_name(f"{folder.name}.part")
    draft.mkdir(parents=True, exist_ok=True)
    for index in range(frames):
        across, down = _SIZES[index % len(_SIZES)]
        rgb = drive.render(index * _STEP_S).rgb
        size = round(rgb.shape[1] * across), round(rgb.shape[0] * down)
        image = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA)
        write_png(draft / f"{index:05d}.png", np.ascontiguousarray(image))
    draft.rename(folder)
    return folder
