"""The video source: frames of a video file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av

from edge.sources.source import SourceError
from shared import clock
from shared.hashing import file_sha256
from shared.imaging.frames import Frame, Layout, UnreadableFrame


class VideoSource:
    """The first video stream of a file, with its frame times, as bgr8."""

    def __init__(
        self, path: Path, *, topics: Sequence[str] = (), start_offset_s: float = 0.0, duration_s: float | None = None
    ) -> None:
        if topics:
            raise SourceError(f"video {path} has no topics: leave --topic out")
        self._path = path
        self._start_ns = round(start_offset_s * 1e9)
        self._end_ns = None if duration_s is None else self._start_ns + round(duration_s * 1e9)
        with self._opened() as container:
            stream = container.streams.video[0]
            is_whole = not self._start_ns and self._end_ns is None
            self._frame_count = stream.frames if is_whole and stream.frames else None

    @property
    def frame_count(self) -> int | None:
        """See FrameSource. None if the file does not contain the number."""
        return self._frame_count

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource."""
        return {"kind": "video", "path": self._path.name, "sha256": file_sha256(self._path)}

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        with self._opened() as container:
            decoded = container.decode(video=0)
            index = 0
            stamp_ns = -1
            while True:
                started_ns = clock.now_ns()
                try:
                    image = next(decoded, None)
                except (av.FFmpegError, OSError, ValueError) as error:
                    yield UnreadableFrame(self._path.name, index, stamp_ns + 1, stamp_ns + 1, 0, str(error))
                    return
                if image is None:
                    return
                # An image without a time follows the previous one at once; times never decrease.
                stamp_ns = max(stamp_ns + 1, round((image.time or 0.0) * 1e9))
                if stamp_ns < self._start_ns:
                    continue
                if self._end_ns is not None and stamp_ns >= self._end_ns:
                    return
                pixels = image.to_ndarray(format="bgr24")
                yield Frame(
                    pixels, Layout.BGR8, self._path.name, index, stamp_ns, stamp_ns, clock.now_ns() - started_ns
                )
                index += 1

    def close(self) -> None:
        """See FrameSource. No file stays open."""

    def _opened(self) -> Any:
        try:
            container: Any = av.open(str(self._path))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise SourceError(f"{self._path} cannot be played: {error}: give an MP4, MKV, AVI or WebM file") from error
        if not container.streams.video:
            container.close()
            raise SourceError(f"{self._path} holds no video stream")
        return container
