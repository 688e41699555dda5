import base64
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bench.load.synthetic_run import CAMERA
from bench.logs.run_log import load_run
from bench.report.data import frame_details
from bench.report.data.answered_frames import answered_frames, first_due_ns


def unpacked(text: str) -> npt.NDArray[np.int32]:
    """What the page's JavaScript makes of a column."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<i4").ravel()


def test_every_frame_can_be_opened_with_all_its_stages(run: Path) -> None:
    """To the microsecond, and with what was not measured still missing."""
    frames = load_run(run).frames
    packed = frame_details.frame_details(frames, answered_frames(frames), first_due_ns(frames), {})
    assert packed["count"] == len(frames) == 400
    for name in ("total", "inferred", "crossing", "uplink"):
        told = unpacked(packed["columns"][name])
        known = frames[f"{name}_ms"].notna().to_numpy()
        np.testing.assert_allclose(told[known] / 1e3, frames[f"{name}_ms"][known], atol=5.1e-4)
        assert (told[~known] == -(2**31)).all()
        assert 0 < known.sum() < len(known)
    np.testing.assert_array_equal(unpacked(packed["columns"]["sequence"]), frames["sequence"].to_numpy(int))
    outcomes = [packed["words"]["outcome"][code] for code in unpacked(packed["columns"]["outcome"])]
    assert outcomes == frames["outcome"].tolist()


def test_a_log_too_long_for_a_page_keeps_its_slowest_frames(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what one looks for; the others are thinned evenly."""
    frames = load_run(run).frames
    monkeypatch.setattr(frame_details, "MOST_FRAMES", 100)
    monkeypatch.setattr(frame_details, "_ALWAYS", 20)
    kept = frame_details.frames_on_page(frames)
    assert len(kept) <= 100
    assert set(frames["total_ms"].nlargest(20).index) <= set(kept.index)
    assert kept.index.is_monotonic_increasing


def test_pictures_that_were_kept_are_found_by_camera_and_sequence(run: Path, tmp_path: Path) -> None:
    """A frame without one is opened without one, and a broken file is no end."""
    frames = load_run(run).frames
    found = frame_details.overlay_images(run, frames, [0, 2, 399])
    assert sorted(found) == [0, 2]
    assert all(picture.startswith("data:image/jpeg;base64,/9j/") for picture in found.values())
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / f"{CAMERA[1:].replace('/', '_')}_000000.jpg").write_bytes(b"\xff\xd8 half a picture")
    assert not frame_details.overlay_images(tmp_path, frames, [0])


def test_pictures_never_fill_the_page(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those named first, the slowest, come first."""
    monkeypatch.setattr(frame_details, "_PICTURE_BYTES", 5_000)
    frames = load_run(run).frames
    assert next(iter(frame_details.overlay_images(run, frames, [2, 0, 1]))) == 2
    assert len(frame_details.overlay_images(run, frames, [2, 0, 1])) < 3
