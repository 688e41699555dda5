"""What the page needs to open a frame: every stage of every frame, small, and pictures of a few."""

import base64
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from bench.report.chapters.run.stages import where
from bench.report.data.answered_frames import column, seconds
from bench.report.output.stage_styles import STAGES
from shared.imaging.image_files import ImageFileError, read_image_file
from shared.imaging.opencv import cv2
from shared.messages.topics import camera_name
from shared.runlog.latency_table import PARTS

MOST_FRAMES: Final = 150_000  # On the page; more would make it slow to open.
_ALWAYS: Final = 2_000  # Of the slowest, where frames must be left out.
_PICTURE_WIDTH: Final = 480
_QUALITY: Final = 70
_PICTURE_BYTES: Final = 1_000_000  # Of all pictures together.
_MOST_WORDS: Final = 500  # Different reasons; the rest share one.
_NOTHING: Final = -(2**31)
_TIMES: Final = ("total", *map(str, PARTS), "uplink", "downlink", "clock_error")
_COUNTS: Final = ("sequence", "frame_index", "bytes_up", "bytes_down", "attempts", "batch_size")
_WORDS: Final = ("camera", "outcome", "reason", "worker", "model_version", "engine")


def drawn(frames: pd.DataFrame) -> pd.DataFrame:
    """The frames that the page carries: all, or the slowest and of the others every so many."""
    if len(frames) <= MOST_FRAMES:
        return frames
    slowest = frames["total_ms"].nlargest(_ALWAYS).index
    step = -(-len(frames) // (MOST_FRAMES - _ALWAYS))
    return frames.loc[frames.index[::step].union(slowest, sort=False)].sort_index()


def details(frames: pd.DataFrame, known: pd.DataFrame, start_ns: int, pictures: Mapping[int, str]) -> dict[str, Any]:
    """The frames of a run for the page; `known`: its answered ones, whose medians stand beside a frame's own times.

    Columns are int32, -2³¹ where nothing was measured: times in microseconds, `due` in units of 0.1 ms. Each is
    deflated (RFC 1950) after its bytes were put together by their place, and then base64.
    """
    if frames.empty:
        return {}
    columns = {name: _packed(column(frames, f"{name}_ms") * 1e3) for name in _TIMES}
    columns |= {name: _packed(column(frames, name)) for name in _COUNTS}
    columns["due"] = _packed(seconds(frames, "t_due_ns", start_ns) * 1e4)
    words = {}
    for name in _WORDS:
        codes, words[name] = _coded(frames[name])
        columns[name] = _packed(codes)
    return {
        "vehicle": str(frames["vehicle"].iloc[0]),
        "session": str(frames["session"].iloc[0]),
        "stages": [_stage(str(part)) for part in PARTS],
        "medians": {str(part): float(known[f"{part}_ms"].median()) for part in PARTS} if len(known) else {},
        "count": len(frames),
        "columns": columns,
        "words": words,
        "pictures": {str(sequence): picture for sequence, picture in pictures.items()},
    }


def pictures(folder: Path, frames: pd.DataFrame, sequences: Iterable[int]) -> dict[int, str]:
    """The overlay pictures of some frames, as far as they were kept, as JPEGs that a page can hold.

    Those named first come first, until a megabyte is full. A picture that cannot be read is left out.
    """
    cameras = frames.set_index("sequence")["camera"]
    found: dict[int, str] = {}
    room = _PICTURE_BYTES
    for sequence in sequences:
        path = folder / "overlays" / f"{camera_name(str(cameras[sequence]))}_{sequence:06d}.jpg"
        picture = _picture(path)
        if picture and (room := room - len(picture)) > 0:
            found[sequence] = picture
    return found


def _picture(path: Path) -> str | None:
    """A picture as a data URL, at most 480 pixels wide."""
    try:
        rgb = read_image_file(path)
    except ImageFileError:
        return None
    height, width = rgb.shape[:2]
    bgr: Any = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    if width > _PICTURE_WIDTH:
        size = (_PICTURE_WIDTH, max(1, round(height * _PICTURE_WIDTH / width)))
        bgr = cv2.resize(bgr, size, interpolation=cv2.INTER_AREA)
    done, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    assert done
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"


def _stage(part: str) -> dict[str, str]:
    look = STAGES[part]
    return {"name": part, "where": where(part), "colour": look.colour, "meaning": look.meaning}


def _packed(values: npt.NDArray[np.float64]) -> str:
    """Numbers as deflated int32 in base64."""
    known = np.isfinite(values) & (np.abs(values) < -_NOTHING)
    whole = np.where(known, np.round(np.where(known, values, 0)), _NOTHING).astype("<i4")
    planes = whole.view(np.uint8).reshape(-1, 4).T  # Bytes of one place are alike, and so become small.
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def _coded(texts: pd.Series) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Texts as places in a list of those that occur."""
    codes, words = pd.factorize(texts.fillna("").astype(str))
    kept = [str(word) for word in words[:_MOST_WORDS]]
    if len(words) > _MOST_WORDS:
        kept.append("(one of many others: see latency.csv)")
    return np.minimum(codes, len(kept) - 1).astype(np.float64), kept
