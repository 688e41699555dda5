"""The bag that a model is judged by where none is given: a drive that nothing was trained on."""

from collections.abc import Callable
from pathlib import Path

from rosbag_tools.drive.recording import DrivePlan, record

SEED = 900_301  # Training takes no seed from 900 000 on.
WEATHER = "clear"  # What a classifier should take its frames for.
_SPACING_S = 1.0  # Apart enough that two frames show different places.


def holdout_bag(frames: int, progress: Callable[[], None] = lambda: None) -> Path:
    """A synthetic drive of so many frames with true labels and boxes, made once under `runs/bags`."""
    path = Path("runs") / "bags" / f"unseen-{SEED}-{frames}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        plan = DrivePlan(seed=SEED, frames=frames, rate_hz=1 / _SPACING_S, weather=WEATHER)
        record(draft, plan, overwrite=True, progress=progress)
        draft.rename(path)
    return path
