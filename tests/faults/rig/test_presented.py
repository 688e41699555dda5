"""The check of presented masks: one that accepts every mask would report stale outputs as right."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np

from ops.processes.null_worker import expected_labels
from shared.runlog.presented_log import OutputOrigin, PresentedLog, PresentedRow
from tests.support.faults.presented import PresentedTicks, panning_pictures, stages
from tests.support.faults.rig import Rig

_TICKS = 5
_MS = 10**6


def _pictures(tmp_path: Path) -> Path:
    with Rig(tmp_path, seed=1) as rig:
        return panning_pictures(rig, _TICKS)


def _labels(pictures: Path, index: int) -> Any:
    image = cv2.imread(str(sorted(pictures.iterdir())[index]))
    assert image is not None
    return expected_labels(np.asarray(image[..., ::-1], np.uint8))


def _vehicle(tmp_path: Path, frames: int, rows: list[PresentedRow], masks: dict[int, Any]) -> Any:
    """Returns a vehicle that has presented these rows and written these masks, by frame index."""
    folder = tmp_path / "car"
    (folder / "presented" / "masks" / "left").mkdir(parents=True)
    with PresentedLog(folder) as log:
        for row in rows:
            log.write(row)
    for index, mask in masks.items():
        cv2.imwrite(str(folder / "presented" / "masks" / "left" / f"{index:06d}.png"), mask)
    frame_rows = [{"sequence": str(number)} for number in range(frames)]
    return SimpleNamespace(folder=folder, source=_pictures(tmp_path), rows=lambda: frame_rows)


def _row(tick: int, origin: OutputOrigin, **fields: Any) -> PresentedRow:
    return PresentedRow("left", "s1", tick, origin, frame_index=tick, due_ns=tick * 100 * _MS, **fields)


def test_the_scene_moves_by_one_pixel_and_can_be_repeated(tmp_path: Path) -> None:
    """A jump at the end of the folder would be a change of scene, which no optical flow follows."""
    pictures = sorted(_pictures(tmp_path).iterdir())
    images = [np.asarray(cv2.imread(str(path)), np.uint8) for path in pictures]
    assert len(images) == 2 * _TICKS - 2
    for image, following in zip(images, [*images[1:], images[0]], strict=True):
        moved = np.array_equal(image[:, 1:], following[:, :-1]) or np.array_equal(image[:, :-1], following[:, 1:])
        assert moved


def test_a_mask_of_another_frame_than_the_row_names_is_wrong(tmp_path: Path) -> None:
    """Covers a stale mask under a new number, a wrong local mask, and a missing file; the index continues in a loop."""
    pictures = _pictures(tmp_path)
    labels = [_labels(pictures, index) for index in range(8)]
    rows = [
        _row(0, OutputOrigin.NONE, reason="no_result"),
        _row(1, OutputOrigin.REMOTE, source_sequence=0, age_ns=100 * _MS),
        _row(2, OutputOrigin.REMOTE, source_sequence=1, age_ns=100 * _MS),  # Shows the mask of frame 0.
        _row(3, OutputOrigin.LOCAL, age_ns=0),
        _row(4, OutputOrigin.LOCAL, age_ns=0),  # Shows the mask of frame 3.
        _row(5, OutputOrigin.WARPED, source_sequence=4, age_ns=100 * _MS),
        _row(6, OutputOrigin.WARPED, source_sequence=4, age_ns=200 * _MS),  # Missing.
        _row(9, OutputOrigin.LOCAL, age_ns=0),
    ]
    masks = {1: labels[0], 2: labels[0], 3: labels[3], 4: labels[3], 5: labels[4], 9: labels[1]}
    ticks = PresentedTicks(_vehicle(tmp_path, 10, rows, masks))
    assert ticks.wrong_masks == 3
    shares = ticks.wrong_pixels()
    assert shares[OutputOrigin.LOCAL][0] == shares[OutputOrigin.LOCAL][2] == 0.0
    assert 0.0 < shares[OutputOrigin.WARPED][0] < shares[OutputOrigin.WARPED][1] == 1.0


def test_ticks_without_a_frame_missing_ticks_and_repeated_ones_are_unaccounted(tmp_path: Path) -> None:
    """The audit of a run checks the same; the scenario does not depend on it."""
    rows = [_row(tick, OutputOrigin.NONE, reason="skipped") for tick in (0, 2, 2, 7)]
    ticks = PresentedTicks(_vehicle(tmp_path, 4, rows, {}))
    assert ticks.unaccounted == 4  # 1 and 3 are missing, 7 has no frame, 2 came twice.
    assert ticks.left_out == 4


def test_stages_are_the_outputs_in_order_without_ticks_that_were_left_out() -> None:
    """A result that appears again in an outage would be a stale one."""
    rows = [
        _row(0, OutputOrigin.WARPED),
        _row(1, OutputOrigin.NONE, reason="skipped"),
        _row(2, OutputOrigin.NONE, reason="failed: no memory"),
        _row(3, OutputOrigin.WARPED),
        _row(4, OutputOrigin.NONE, reason="too_old"),
        _row(5, OutputOrigin.NONE, reason="too_old"),
    ]
    assert stages(rows) == [OutputOrigin.WARPED, "too_old"]
    assert stages([*rows, _row(6, OutputOrigin.WARPED)]) == [OutputOrigin.WARPED, "too_old", OutputOrigin.WARPED]
