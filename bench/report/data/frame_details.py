"""The data of single frames for the page: all stage durations in compact form, and overlay images of a few frames."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from bench.report.data.answered_frames import column_values, seconds_since
from bench.report.output.stage_styles import STAGES, node_of
from bench.statistics.bootstrap import Floats
from shared.imaging.image_files import ImageFileError, read_image_file
from shared.imaging.opencv import cv2
from shared.messages.topics import camera_name
from shared.runlog.latency_table import PARTS

MAX_FRAMES: Final = 150_000  # Frames on the page; more would make it slow to open.
_SLOWEST_FRAMES: Final = 2_000  # Number of slowest frames that are always kept.
_IMAGE_WIDTH: Final = 480
_JPEG_QUALITY: Final = 70
_MAX_IMAGE_BYTES: Final = 250_000  # Size of all images together.
_TIMES: Final = ("total", *map(str, PARTS), "uplink", "downlink", "clock_error")
_COUNTS: Final = ("sequence", "frame_index", "bytes_up", "bytes_down", "attempts", "batch_size")
_WORDS: Final = ("camera", "outcome", "reason", "worker", "model_version", "engine")


def frames_on_page(
    frames: pd.DataFrame, max_frames: int = MAX_FRAMES, slowest_frames: int = _SLOWEST_FRAMES
) -> pd.DataFrame:
    """Returns the frames for the page: all, or the slowest and an even selection of the others."""
    if len(frames) <= max_frames:
        return frames
    slowest = frames["total_ms"].nlargest(slowest_frames).index
    step = -(-len(frames) // (max_frames - slowest_frames))
    return frames.loc[frames.index[::step].union(slowest, sort=False)].sort_index()


def frame_details(
    frames: pd.DataFrame, answered: pd.DataFrame, start_ns: int, images: Mapping[int, str]
) -> dict[str, Any]:
    """Returns the data of a run's frames for report.js.

    The medians of `answered` are shown beside the durations of a frame. `columns` is JSON, compressed by DEFLATE in the
    zlib format (RFC 1950) and encoded in base64: lists of integers, times in microseconds, `due` in units of 0.1 ms,
    texts as indices into `words`, null where nothing was measured.
    """
    if frames.empty:
        return {}
    columns = {name: _integers(column_values(frames, f"{name}_ms") * 1e3) for name in _TIMES}
    columns |= {name: _integers(column_values(frames, name)) for name in _COUNTS}
    columns["due"] = _integers(seconds_since(frames, "t_due_ns", start_ns) * 1e4)
    words = {}
    for name in _WORDS:
        codes, texts = pd.factorize(frames[name].fillna("").astype(str))
        columns[name], words[name] = codes.tolist(), texts.tolist()
    packed = zlib.compress(json.dumps(columns, separators=(",", ":")).encode())
    return {
        "vehicle": str(frames["vehicle"].iloc[0]),
        "session": str(frames["session"].iloc[0]),
        "stages": [_stage(str(part)) for part in PARTS],
        "medians": {str(part): float(answered[f"{part}_ms"].median()) for part in PARTS} if len(answered) else {},
        "count": len(frames),
        "columns": base64.b64encode(packed).decode(),
        "words": words,
        "images": {str(sequence): image for sequence, image in images.items()},
    }


def overlay_images(
    folder: Path, frames: pd.DataFrame, sequences: Iterable[int], max_bytes: int = _MAX_IMAGE_BYTES
) -> dict[int, str]:
    """Returns the stored overlay images of the given frames as data URLs, by sequence number.

    Images are added in the given order up to `max_bytes` characters. Missing and unreadable images are skipped.
    """
    cameras = frames.set_index("sequence")["camera"]
    images: dict[int, str] = {}
    remaining = max_bytes
    for sequence in sequences:
        image = _data_url(folder / "overlays" / f"{camera_name(str(cameras[sequence]))}_{sequence:06d}.jpg")
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


def _integers(values: Floats) -> list[int | None]:
    return [round(value) if np.isfinite(value) else None for value in values.tolist()]
