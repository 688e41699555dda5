"""How much of the code one frame passes."""

import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType

from cloud.models.loader import ModelLoader
from shared import clock
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from tests.pipeline.rig import pictures, play, worker

ROOT = Path(__file__).parents[2]
PACKAGES = ("edge", "cloud", "shared", "rosbag_tools")
FRAMES, WARM_UP = 60, 6
MAX_MODULES, MAX_FOLDERS = 48, 13


def test_a_frame_passes_few_modules(mosquitto_url: str, models: Path, tmp_path: Path) -> None:
    """A reader who follows a frame from its source to its row opens as many files. The numbers may fall, and not grow."""
    calls: list[tuple[int, str]] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            calls.append((clock.now_ns(), frame.f_code.co_filename))

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        with ModelLoader(Repository(models)).open("tiny") as model, worker(mosquitto_url, model):
            code, printed = play(
                pictures(tmp_path, FRAMES), mosquitto_url, tmp_path / "car", closed_loop=True, window=1, sinks=()
            )
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0, printed
    rows = list(read_rows(tmp_path / "car"))
    due_ns = [int(row["t_due_ns"]) for row in rows[WARM_UP:]]
    passed = min((modules_between(calls, *period) for period in pairwise(due_ns)), key=len)  # Without periodic tasks.
    assert len(passed) <= MAX_MODULES, "\n".join(map(str, passed))
    folders = {name.parent for name in passed}
    assert len(folders) <= MAX_FOLDERS, folders


def modules_between(calls: Sequence[tuple[int, str]], begin_ns: int, end_ns: int) -> list[Path]:
    """Returns the modules of the nodes of which a function was called in a period."""
    paths = {Path(name) for at_ns, name in calls if begin_ns <= at_ns < end_ns}
    names = sorted(path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT))
    return [name for name in names if name.parts[0] in PACKAGES]
