"""A gate on a camera whose frames change their size or encoding during a run: no result outlives its settings."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from analysis.logs.audit import audit
from rosbag_tools.writer import BagWriter
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.bad_input.worker import working
from tests.pipeline.rig import check, connect, play
from tests.support.tiny_model import HEIGHT, WIDTH

_FRAMES = 4  # With each setting.
_LARGE, _SMALL = (40 * HEIGHT, 40 * WIDTH), (20 * HEIGHT, 20 * WIDTH)


@pytest.mark.mosquitto
def test_a_camera_that_changes_its_size_or_encoding_gets_new_results(mosquitto_url: str, tmp_path: Path) -> None:
    """The first frame after each change is sent; frames that cannot be read are dropped and do not disturb the gate."""
    settings = [(_LARGE, "rgb8"), (_SMALL, "rgb8"), (_SMALL, "bgr8"), (_SMALL, "bayer_rggb8"), (_LARGE, "rgb8")]
    settings += [(_LARGE, "32FC7"), (_LARGE, "rgb8")]
    out = tmp_path / "car"
    with BagWriter(tmp_path / "drive", "mcap", "none") as writer:
        for number in range(len(settings) * _FRAMES):
            size, encoding = settings[number // _FRAMES]
            pixels = np.full((*size, 1 if encoding == "bayer_rggb8" else 3), 77, np.uint8).squeeze()
            stamp_ns = 10**18 + number * 10**8
            writer.write_image("/sensors/camera/left/image_raw", pixels, encoding, stamp_ns, stamp_ns, "left")
    everything = {"gate": "mse", "gate_threshold": 65025.0}  # All frames of a camera count as similar.
    with working(connect(mosquitto_url)):
        code, printed = play(tmp_path / "drive", mosquitto_url, out, closed_loop=True, window=1, **everything)
    assert code == 0, printed
    rows = sorted(read_rows(out), key=lambda row: int(row["sequence"]))
    check(rows)
    assert audit(out) == ()
    sent = [_FRAMES * step for step in range(5)]
    assert [int(row["sequence"]) for row in rows if row["outcome"] == "answered"] == sent
    assert Counter(row["outcome"] for row in rows) == {
        "answered": 5, "dropped": _FRAMES, "reused": 5 * (_FRAMES - 1) + _FRAMES
    }  # fmt: skip
    assert all("32FC7" in row["reason"] for row in rows if row["outcome"] == "dropped")
    reused = {int(row["sequence"]): int(row["reused_sequence"]) for row in rows if row["outcome"] == "reused"}
    assert reused == {sequence: min(sequence // _FRAMES * _FRAMES, sent[-1]) for sequence in reused}
    assert read_manifest(out)["reuse"]["gate"]["resets"] == 4
    assert "changes of a camera's frame size or encoding: 4;" in " ".join(printed.split())
