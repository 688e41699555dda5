"""A gate on cameras whose frames change their size or encoding during a run: no result outlives its camera's settings."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.logs.audit import audit
from rosbag_tools.writer import BagWriter
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.bad_input.worker import working
from tests.pipeline.rig import check, connect, play
from tests.support.tiny_model import HEIGHT, WIDTH

pytestmark = pytest.mark.mosquitto
_FRAMES = 6  # With each setting.
_STEP_NS = 10**8
_LARGE, _SMALL = (40 * HEIGHT, 40 * WIDTH), (20 * HEIGHT, 20 * WIDTH)
_EVERYTHING: dict[str, Any] = {"gate": "mse", "gate_threshold": 65025.0}  # All frames of a camera count as similar.

Setting = tuple[str, tuple[int, int], str]  # Camera, size and encoding.


def _bag(path: Path, settings: Sequence[Sequence[Setting]]) -> Path:
    """Writes a bag in which each camera has one setting after the other; cameras of one step take turns."""
    stamp_ns = 10**18
    with BagWriter(path, "mcap", "none") as writer:
        for step in settings:
            for _ in range(_FRAMES):
                for camera, size, encoding in step:
                    channels = {"mono8": 1, "bayer_rggb8": 1}.get(encoding, 3)
                    pixels = np.full((*size, channels), 77, np.uint8).squeeze()
                    topic = f"/sensors/camera/{camera}/image_raw"
                    writer.write_image(topic, pixels, encoding, stamp_ns, stamp_ns, camera)
                    stamp_ns += _STEP_NS
    return path


def _played(url: str, bag: Path, out: Path) -> tuple[list[dict[str, str]], int, str]:
    """Returns the rows in order, the number of resets in the manifest, and what was printed."""
    with working(connect(url)):
        code, printed = play(bag, url, out, closed_loop=True, window=1, **_EVERYTHING)
    assert code == 0, printed
    rows = sorted(read_rows(out), key=lambda row: int(row["sequence"]))
    check(rows)
    assert audit(out) == ()
    return rows, read_manifest(out)["reuse"]["gate"]["resets"], printed


def test_a_camera_that_changes_its_size_or_encoding_gets_new_results(mosquitto_url: str, tmp_path: Path) -> None:
    """A mask of the old size would be presented for the new one; the first frame after each change is sent."""
    settings = [
        [("left", _LARGE, "rgb8")],
        [("left", _SMALL, "rgb8")],
        [("left", _SMALL, "bgr8")],
        [("left", _SMALL, "bayer_rggb8")],
        [("left", _LARGE, "rgb8")],
    ]
    rows, resets, printed = _played(mosquitto_url, _bag(tmp_path / "drive", settings), tmp_path / "car")
    assert len(rows) == len(settings) * _FRAMES
    sent = [int(row["sequence"]) for row in rows if row["outcome"] == "answered"]
    assert sent == [step * _FRAMES for step in range(len(settings))]
    assert Counter(row["outcome"] for row in rows) == {"answered": len(sent), "reused": len(rows) - len(sent)}
    assert all(row["reused_sequence"] in ("", str(int(row["sequence"]) // _FRAMES * _FRAMES)) for row in rows)
    assert resets == len(settings) - 1
    assert f"changes of a camera's frame size or encoding: {resets};" in " ".join(printed.split())


def test_cameras_of_different_sizes_do_not_disturb_each_other(mosquitto_url: str, tmp_path: Path) -> None:
    """Each camera is compared with itself, although they look alike."""
    bag = _bag(tmp_path / "drive", [[("left", _LARGE, "rgb8"), ("right", _SMALL, "bgr8")]])
    rows, resets, printed = _played(mosquitto_url, bag, tmp_path / "car")
    assert [row["outcome"] for row in rows] == ["answered"] * 2 + ["reused"] * (2 * _FRAMES - 2)
    cameras = {row["sequence"]: row["camera"] for row in rows}
    assert all(cameras[row["reused_sequence"]] == row["camera"] for row in rows if row["reused_sequence"])
    assert resets == 0
    assert "frame size" not in printed


def test_a_frame_that_cannot_be_read_does_not_disturb_the_gate(mosquitto_url: str, tmp_path: Path) -> None:
    """It is dropped with its reason; the frames after it still reuse the result from before."""
    settings = [[("left", _LARGE, "rgb8")], [("left", _LARGE, "32FC7")], [("left", _LARGE, "rgb8")]]
    rows, resets, _ = _played(mosquitto_url, _bag(tmp_path / "drive", settings), tmp_path / "car")
    assert Counter(row["outcome"] for row in rows) == {"answered": 1, "dropped": _FRAMES, "reused": 2 * _FRAMES - 1}
    assert all("32FC7" in row["reason"] for row in rows if row["outcome"] == "dropped")
    assert {row["reused_sequence"] for row in rows} == {"", "0"}
    assert resets == 0
