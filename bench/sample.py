"""The bag that a bench or a demo plays where none is given."""

from collections.abc import Callable
from pathlib import Path

from rosbag_tools.recording import Plan, record

_SEED = 2026


def sample_bag(frames: int, progress: Callable[[], None] | None = None) -> Path:
    """A synthetic drive of so many frames, made once under `runs/bags`; `progress` is told of every frame."""
    path = Path("runs") / "bags" / f"drive-{_SEED}-{frames}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        record(draft, Plan(seed=_SEED, frames=frames), overwrite=True, progress=progress)
        draft.rename(path)
    return path
