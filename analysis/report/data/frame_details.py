"""The data of single frames for the page: all stage durations, and overlay images of a few frames."""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.logs.run_log import ORIGINS, frames_not_sent
from analysis.report.data.answered_frames import column_values, parts_in, seconds_since
from analysis.report.stage_styles import STAGES, node_of
from analysis.statistics.bootstrap import Floats
from shared.imaging.image_files import ImageFileError, read_image_file
from shared.imaging.opencv import cv2
from shared.runlog.latency_log import Outcome

# Frames on the page that a worker answered, as many with a result that were not sent, and as many without one: more points
# would be slow to draw.
MAX_FRAMES: Final = 4_000
_SLOWEST_FRAMES: Final = 1_000  # Number of slowest frames that are always kept.
_IMAGE_WIDTH: Final = 480
_JPEG_QUALITY: Final = 70
_MAX_IMAGE_BYTES: Final = 250_000  # Size of all images together.
_SUMS: Final = ("total", "uplink", "downlink", "clock_error")
_DECIMALS: Final = ("gate_distance", "local_confidence")
_COUNTS: Final = ("reused_sequence", "sequence", "frame_index", "bytes_up", "bytes_down", "attempts", "batch_size")
_WORDS: Final = ("camera", "outcome", "reason", "worker", "model_version", "engine")


def frames_on_page(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames that the page draws and can open.

    Of more than 4,000 frames that a worker answered, that were not sent, or that got no result, these are the slowest and an
    even selection of the others.
    """
    is_answered = frames["outcome"] == Outcome.ANSWERED
    without_result = frames[~frames["outcome"].isin([*ORIGINS])]
    groups = (frames[is_answered], frames_not_sent(frames), without_result)
    return pd.concat([_selected(group) for group in groups]).sort_index()


def _selected(frames: pd.DataFrame) -> pd.DataFrame:
    if len(frames) <= MAX_FRAMES:
        return frames
    slowest = frames["total_ms"].nlargest(_SLOWEST_FRAMES).index
    step = -(-len(frames) // (MAX_FRAMES - _SLOWEST_FRAMES))
    return frames.loc[frames.index[::step].union(slowest, sort=False)]


def frame_details(
    frames: pd.DataFrame, answered: pd.DataFrame, start_ns: int, images: Mapping[int, str]
) -> dict[str, Any]:
    """Returns the data of the frames on the page for report.js; empty without frames.

    The medians of `answered` are shown beside the durations of a frame. `columns` are lists: times in milliseconds, `due`
    in seconds, None where nothing was measured.
    """
    if frames.empty:
        return {}
    parts = parts_in(frames)
    columns: dict[str, list[Any]] = {
        name: _rounded(column_values(frames, f"{name}_ms"), 3) for name in (*_SUMS, *parts)
    }
    columns |= {name: _rounded(column_values(frames, name), 0) for name in _COUNTS}
    columns |= {name: _rounded(column_values(frames, name), 3) for name in _DECIMALS}
    columns |= {name: frames[name].fillna("").astype(str).tolist() for name in _WORDS}
    return {
        "vehicle": str(frames["vehicle"].iloc[0]),
        "session": str(frames["session"].iloc[0]),
        "stages": [_stage(part) for part in parts],
        "medians": {part: float(answered[f"{part}_ms"].median()) for part in parts_in(answered)}
        if len(answered)
        else {},
        "columns": columns | {"due": _rounded(seconds_since(frames, "t_due_ns", start_ns), 4)},
        "images": {str(sequence): image for sequence, image in images.items()},
    }


def overlay_images(folder: Path, sequences: Iterable[int], max_bytes: int = _MAX_IMAGE_BYTES) -> dict[int, str]:
    """Returns the stored overlay images of the given frames as data URLs, by sequence number.

    Images are added in the given order up to `max_bytes` characters. Missing and unreadable images are skipped.
    """
    images: dict[int, str] = {}
    remaining = max_bytes
    for sequence in sequences:
        files = (folder / "overlays").glob(f"*_{sequence:06d}.jpg")
        image = _data_url(next(files, folder))
        if image and (remaining := remaining - len(image)) > 0:
            images[sequence] = image
    return images


def _data_url(path: Path) -> str | None:
    """Returns an image as a JPEG data URL with a width of at most 480 pixels; None if it cannot be read."""
    try:
        rgb = read_image_file(path)
    except ImageFileError:
        return None
    height, width = rgb.shape[:2]
    bgr: Any = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    if width > _IMAGE_WIDTH:
        size = (_IMAGE_WIDTH, max(1, round(height * _IMAGE_WIDTH / width)))
        bgr = cv2.resize(bgr, size, interpolation=cv2.INTER_AREA)
    done, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    assert done
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"


def _stage(stage: str) -> dict[str, str]:
    style = STAGES[stage]
    return {"name": stage, "where": node_of(stage), "colour": style.colour, "meaning": style.meaning}


def _rounded(values: Floats, digits: int) -> list[float | None]:
    return [round(value, digits or None) if np.isfinite(value) else None for value in values.tolist()]
