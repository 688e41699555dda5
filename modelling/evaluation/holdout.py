"""The default bag of `skylane model bench`: a synthetic drive that no model was trained on."""

from collections.abc import Callable
from pathlib import Path

from rosbag_tools.drive.recording import DrivePlan, record

SEED = 900_301  # Training uses no seeds from 900 000 on.
WEATHER = "clear"  # The true class of its frames for a classifier.
_SPACING_S = 1.0  # Time between two frames, enough to show different places.


def holdout_bag(frames: int, progress: Callable[[], None] = lambda: None) -> Path:
    """Returns a synthetic drive with true labels and boxes, rendered once into `runs/bags`."""
    path = Path("runs") / "bags" / f"unseen-{SEED}-{frames}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        plan = DrivePlan(seed=SEED, frames=frames, rate_hz=1 / _SPACING_S, weather=WEATHER)
        record(draft, plan, overwrite=True, progress=progress)
        draft.rename(path)
    return path
