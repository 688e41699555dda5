"""The camera source: frames from a camera of this machine."""

from collections.abc import Iterator, Sequence
from typing import Any

from edge.sources.source import SourceError
from shared import clock
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.opencv import cv2


class CameraSource:
    """A camera by number (`camera:0`) or device (`/dev/video0`), as bgr8; ends when the camera is unplugged."""

    def __init__(
        self, name: str, *, topics: Sequence[str] = (), start_offset_s: float = 0.0, duration_s: float | None = None
    ) -> None:
        if topics or start_offset_s:
            raise SourceError(f"{name} is live: leave --topic and --start-offset out")
        number = name.removeprefix("camera:")
        if not number.isdecimal() and "/" not in number:
            raise SourceError(
                f"{name!r} names no camera: give its number, as in camera:0, or its device, as in /dev/video0"
            )
        self._name = name
        self._duration_ns = None if duration_s is None else round(duration_s * 1e9)
        self._capture = cv2.VideoCapture(int(number) if number.isdecimal() else number)
        if not self._capture.isOpened():
            raise SourceError(f"camera {name!r} cannot be opened: check that it is plugged in and not in use")
        self._capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)

    @property
    def frame_count(self) -> int | None:
        """See FrameSource."""
        return None

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource. A live image has no hash."""
        return {"kind": "camera", "path": self._name}

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        started_ns = clock.now_ns()
        index = 0
        while self._duration_ns is None or clock.now_ns() - started_ns < self._duration_ns:
            if not self._capture.grab():
                return
            grabbed_ns = clock.now_ns()
            pixels: Any
            is_decoded, pixels = self._capture.retrieve()
            read_ns = clock.now_ns() - grabbed_ns
            if is_decoded:
                yield Frame(pixels, Layout.BGR8, self._name, index, grabbed_ns, grabbed_ns, read_ns)
            else:
                yield UnreadableFrame(self._name, index, grabbed_ns, grabbed_ns, read_ns, "grabbed but not decoded")
            index += 1

    def close(self) -> None:
        """See FrameSource."""
        self._capture.release()
