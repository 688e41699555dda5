from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rosbag_tools.writer import BagWriter
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.bad_input.worker import flags_of, working
from tests.pipeline.rig import connect
from tests.support.tiny_model import HEIGHT, WIDTH


def _bag(path: Path, count: int = 20, encoding: str = "rgb8") -> Path:
    with BagWriter(path, "mcap", "none") as writer:
        for index in range(count):
            pixels = np.full((40 * HEIGHT, 40 * WIDTH, 3), index, np.uint8)  # Large enough for several chunks.
            stamp_ns = 10**18 + index * 10**7
            writer.write_image("/sensors/camera/left/image_raw", pixels, encoding, stamp_ns, stamp_ns, "camera")
    return path


@pytest.mark.parametrize("name", ["gone.bag", "gone.mcap", "gone.mp4", "gone"])
def test_missing_source_is_reported(fails: Callable[..., str], tmp_path: Path, name: str) -> None:
    """Covers a typing error in a path."""
    line = fails("edge", "play", tmp_path / name)
    assert f"{tmp_path / name} does not exist" in line
    assert "give a bag, a video file, a folder of images or camera:0" in line


@pytest.mark.parametrize("name", ["text.bag", "text.mcap", "text.db3", "text.mp4"])
@pytest.mark.parametrize("content", [b"", b"this is not a recording\n" * 100], ids=["empty", "text"])
def test_source_of_another_format_is_reported(
    fails: Callable[..., str], tmp_path: Path, name: str, content: bytes
) -> None:
    """Covers a wrong suffix and a failed download."""
    (tmp_path / name).write_bytes(content)
    assert name in fails("edge", "play", tmp_path / name)


@pytest.mark.parametrize("name", ["notes.txt", "image.png"])
def test_unknown_source_type_is_reported_with_the_known_ones(
    fails: Callable[..., str], tmp_path: Path, name: str
) -> None:
    """The error lists the supported suffixes."""
    (tmp_path / name).write_text("x")
    assert ".mcap" in fails("edge", "play", tmp_path / name)


def test_unknown_topic_is_reported_with_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """Topics are long and easily mistyped."""
    line = fails("edge", "play", _bag(tmp_path / "drive"), "--topic", "/sensors/camera/lfet/image_raw")
    assert "/sensors/camera/lfet/image_raw" in line
    assert "did you mean" in line
    assert "/sensors/camera/left/image_raw" in line


def test_truncated_bag_is_played_up_to_the_damage(
    fails: Callable[..., str], mosquitto_url: str, tmp_path: Path
) -> None:
    """All readable frames are processed and logged before the error is printed."""
    bag = _bag(tmp_path / "drive", 40)
    (file,) = bag.glob("*.mcap")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    out = tmp_path / "run"
    with working(connect(mosquitto_url)):
        line = fails("edge", "play", bag, *flags_of(mosquitto_url, out), "--codec", "raw")
    assert "drive" in line
    rows = list(read_rows(out))
    assert 5 < len(rows) < 40
    assert Counter(row["outcome"] for row in rows) == {"answered": len(rows)}
    assert read_manifest(out)["frames_read"] == len(rows)
    assert len(list((out / "masks").rglob("*.png"))) == len(rows)


def test_unsupported_encoding_is_named(fails: Callable[..., str], mosquitto_url: str, tmp_path: Path) -> None:
    """Every frame has a row with the reason."""
    out = tmp_path / "run"
    with working(connect(mosquitto_url)):
        line = fails("edge", "play", _bag(tmp_path / "drive", 5, "mono7"), *flags_of(mosquitto_url, out))
    assert "none of its 5 frames can be read" in line
    assert "mono7" in line
    assert Counter(row["outcome"] for row in read_rows(out)) == {"dropped": 5}
