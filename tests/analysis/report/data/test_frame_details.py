from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.logs.run_log import load_run
from analysis.report.data import frame_details
from analysis.report.data.answered_frames import (
    FrameGroup,
    answered_frames,
    first_due_ns,
    stage_durations,
    timed_results,
)
from tests.support.synthetic_run import CAMERA


def test_details_contain_every_stage_of_every_frame(run: Path) -> None:
    """Durations have a resolution of one microsecond, and values that were not measured are None."""
    frames = load_run(run).frames
    columns = frame_details.frame_details(frames, answered_frames(frames), first_due_ns(frames), {})["columns"]
    for name in ("total", "inferred", "crossing", "uplink"):
        decoded = np.array(columns[name], np.float64)
        np.testing.assert_allclose(decoded, frames[f"{name}_ms"], atol=5.1e-4)
        assert 0 < np.isfinite(decoded).sum() < len(decoded) == 400
    assert columns["sequence"] == frames["sequence"].tolist()
    assert columns["outcome"] == frames["outcome"].tolist()


def test_a_page_of_a_long_log_keeps_the_slowest_frames(run: Path) -> None:
    """The other frames are selected evenly."""
    frames = pd.concat([load_run(run).frames] * 20, ignore_index=True)
    kept = frame_details.frames_on_page(frames)
    assert len(kept) < len(frames)
    assert (kept["outcome"] == "answered").sum() <= frame_details.MAX_FRAMES
    assert (kept["outcome"] != "answered").sum() == (frames["outcome"] != "answered").sum()
    assert set(frames["total_ms"].nlargest(20).index) <= set(kept.index)
    assert kept.index.is_monotonic_increasing


def test_overlay_images_are_found_by_camera_and_sequence_number(run: Path, tmp_path: Path) -> None:
    """Frames without an image and unreadable images are skipped."""
    found = frame_details.overlay_images(run, [0, 2, 399])
    assert sorted(found) == [0, 2]
    assert all(image.startswith("data:image/jpeg;base64,/9j/") for image in found.values())
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / f"{CAMERA[1:].replace('/', '_')}_000000.jpg").write_bytes(b"\xff\xd8 truncated image")
    assert not frame_details.overlay_images(tmp_path, [0])


def test_the_size_of_all_images_is_limited(run: Path) -> None:
    """The first sequence numbers, which are the slowest frames, take precedence."""
    images = frame_details.overlay_images(run, [2, 0, 1], max_bytes=5_000)
    assert next(iter(images)) == 2
    assert len(images) < 3


def test_a_group_has_the_results_of_its_run_of_any_origin(gated: Path) -> None:
    """The share is of all frames that were read; only a worker's results have the durations of all stages."""
    run = load_run(gated)
    group = FrameGroup.of_run(run)
    assert (group.name, group.runs) == (run.name, None)
    assert group.results.equals(timed_results(run.frames))
    assert group.answered.equals(answered_frames(run.frames))
    assert 0 < len(group.answered) < len(group.results) < len(run.frames)
    assert group.result_share == len(group.results) / len(run.frames)
    empty = FrameGroup.of_run(replace(run, frames=run.frames[:0]))
    assert len(empty.answered) == 0
    assert np.isnan(empty.result_share)


@pytest.mark.parametrize(
    ("uplink_ms", "downlink_ms", "is_split"),
    [
        (2.0, 1.0, True),
        (0.0, 1.0, True),
        (2.0, 0.0, True),
        (-0.1, 1.0, False),
        (2.0, -0.1, False),
        (np.nan, 1.0, False),
    ],
)
def test_the_crossing_is_split_unless_a_direction_is_negative(
    run: Path, uplink_ms: float, downlink_ms: float, *, is_split: bool
) -> None:
    """A transport without clocks measures neither direction, and a wrong clock offset makes one negative."""
    frames = answered_frames(load_run(run).frames).assign(uplink_ms=uplink_ms, downlink_ms=downlink_ms)
    durations = stage_durations(frames)
    assert ("uplink" in durations, "downlink" in durations) == (is_split, is_split)
    assert ("crossing" in durations) != is_split
