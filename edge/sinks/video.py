"""The video: what the camera saw beside what the model says, as an MP4 that a browser plays."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from edge.sinks.files import unwritable
from edge.sinks.sink import Answered
from edge.sinks.view import seen, told, view
from shared.model_card import ModelCard
from shared.topics import camera_name

_OPACITY = 0.55
_TIME_BASE = Fraction(1, 1000)


class VideoSink:
    """Writes `overlay_<camera>.mp4` (H.264) on the source's own time line."""

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder
        self._card = card
        self._films: dict[str, _Film] = {}

    def write(self, answered: Answered) -> None:
        """See Sink."""
        picture = seen(answered)
        sides = np.concatenate((picture, view(picture, answered, self._card, _OPACITY)), axis=1)
        sides = told(sides, self._card)
        if answered.camera not in self._films:
            path = self._folder / f"overlay_{camera_name(answered.camera)}.mp4"
            self._films[answered.camera] = _Film(path, sides, answered.source_ns)
        self._films[answered.camera].add(sides, answered.source_ns)

    def close(self) -> None:
        """See Sink."""
        for film in self._films.values():
            film.close()


class _Film:
    """One MP4 file."""

    def __init__(self, path: Path, first: Any, start_ns: int) -> None:
        self._path = path
        self._start_ns = start_ns
        self._last = -1
        height, width = (side - side % 2 for side in first.shape[:2])  # H.264 halves the colour planes.
        try:
            self._container = av.open(str(path), "w", options={"movflags": "+faststart"})
            self._stream: Any = self._container.add_stream("libx264", options={"preset": "veryfast", "crf": "23"})
        except (av.FFmpegError, OSError, ValueError) as error:
            raise unwritable(path, error) from error
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        self._stream.time_base = self._stream.codec_context.time_base = _TIME_BASE
        self._stream.thread_count = 1

    def add(self, picture: Any, source_ns: int) -> None:
        """Append a picture, RGB, at its own time; two of one millisecond are put one apart."""
        frame = av.VideoFrame.from_ndarray(
            np.ascontiguousarray(picture[: self._stream.height, : self._stream.width]), format="rgb24"
        )
        self._last = max(self._last + 1, (source_ns - self._start_ns) // 1_000_000)
        frame.pts, frame.time_base = self._last, _TIME_BASE
        self._mux(frame)

    def close(self) -> None:
        """Write what the encoder still holds."""
        self._mux(None)

    def _mux(self, frame: av.VideoFrame | None) -> None:
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
            if frame is None:
                self._container.close()
        except (av.FFmpegError, OSError, ValueError) as error:
            raise unwritable(self._path, error) from error
