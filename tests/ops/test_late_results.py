from pathlib import Path

import av
import pytest

from ops.broker.broker import Broker
from ops.late_results import play_late
from rosbag_tools.drive.recording import DrivePlan, record
from shared.runlog.presented_log import read_presented

FRAMES = 12


def test_the_video_shows_every_frame_of_the_drive_with_held_and_moved_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer compares both sides of the same moment, so frames without a result are in the video too."""
    models = Path("models").resolve()
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "drive", DrivePlan(seed=3, frames=FRAMES, width=484, height=304))
    with Broker.start() as broker:
        late = play_late(tmp_path / "drive", tmp_path / "run", broker, models=models, model="road-tiny", frames=FRAMES)
    assert late is not None
    with av.open(str(late.video)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == FRAMES == len(list(read_presented(tmp_path / "run")))
    assert {frame.shape for frame in frames} == {(402, 1280, 3)}
