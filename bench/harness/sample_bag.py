"""The bag that a bench or a demo plays where none is given."""

from collections.abc import Callable
from pathlib import Path

from rosbag_tools.drive.recording import DrivePlan, record

SEED = 2026
_WIDTH, _HEIGHT = 1936, 1216


def sample_bag(
    frames: int, progress: Callable[[], None] | None = None, *, width: int = _WIDTH, height: int = _HEIGHT
) -> Path:
    """A synthetic drive of so many frames, made once under `runs/bags`; `progress` is told of every frame."""
    size = "" if (width, height) == (_WIDTH, _HEIGHT) else f"-{width}x{height}"
    path = Path("runs") / "bags" / f"drive-{SEED}-{frames}{size}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        record(
            draft, DrivePlan(seed=SEED, frames=frames, width=width, height=height), overwrite=True, progress=progress
        )
        draft.rename(path)
    return path
