"""The folder source: image files, in the order of their names."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edge.sources.source import IMAGE_SUFFIXES, SourceError
from shared import clock
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.opencv import cv2

_RATE_HZ = 10.0  # Image files have no time stamps, so this rate defines them.
_PERIOD_NS = round(1e9 / _RATE_HZ)


class FolderSource:
    """A folder of images as one camera, or of one subfolder of images per camera, at 10 images per second and camera.

    Colour images become bgr8, grey images mono8 or mono16. `skylane bag extract` writes such subfolders; `topics` are
    their names.
    """

    def __init__(
        self, path: Path, *, topics: Sequence[str] = (), start_offset_s: float = 0.0, duration_s: float | None = None
    ) -> None:
        cameras = _cameras(path, topics)
        first = round(start_offset_s * _RATE_HZ)
        last = None if duration_s is None else first + round(duration_s * _RATE_HZ)
        self._path = path
        self._images = sorted(  # By index, then by camera.
            (index, camera, image)
            for camera, images in cameras.items()
            for index, image in enumerate(images[first:last])
        )
        if not self._images:
            total = sum(map(len, cameras.values()))
            raise SourceError(f"folder {path} has {total} images, none of them in the selected time")

    @property
    def frame_count(self) -> int | None:
        """See FrameSource."""
        return len(self._images)

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource."""
        digest = hashlib.sha256()
        for _, _, image in self._images:
            digest.update(
                str(image.relative_to(self._path)).encode() + b"\0" + hashlib.sha256(image.read_bytes()).digest()
            )
        return {"kind": "folder", "path": self._path.name, "sha256": digest.hexdigest(), "rate_hz": _RATE_HZ}

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        for index, camera, path in self._images:
            started_ns = clock.now_ns()
            pixels, reason = _read(path)
            stamp_ns = index * _PERIOD_NS
            read_ns = clock.now_ns() - started_ns
            if pixels is None:
                yield UnreadableFrame(camera, index, stamp_ns, stamp_ns, read_ns, reason)
                continue
            layout = Layout.BGR8 if pixels.ndim == 3 else Layout(f"mono{8 * pixels.itemsize}")  # noqa: PLR2004 (H×W×3)
            yield Frame(pixels, layout, camera, index, stamp_ns, stamp_ns, read_ns)

    def close(self) -> None:
        """See FrameSource. No file stays open."""


def _cameras(path: Path, wanted: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the image files of each camera, sorted by name."""
    found = {path.name: _images(path)}
    if not found[path.name]:
        found = {folder.name: _images(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
        found = {name: images for name, images in found.items() if images}
    elif wanted:
        raise SourceError(f"folder {path} holds one camera: leave --topic out")
    if unknown := set(wanted) - set(found):
        raise SourceError(f"folder {path} has no camera {min(unknown)!r}: it has {', '.join(found)}")
    return {name: images for name, images in found.items() if not wanted or name in wanted}


def _images(path: Path) -> list[Path]:
    return sorted(item for item in path.iterdir() if item.suffix.lower() in IMAGE_SUFFIXES)


def _read(path: Path) -> tuple[Any, str]:
    """Returns an image as H×W×3 uint8 BGR or H×W uint8 or uint16, or None and the reason."""
    try:
        pixels: Any = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        return None, f"{path.name}: {error.err}"
    if pixels is None:
        return None, f"{path.name} is no image that OpenCV can read"
    if pixels.ndim == 3 and (pixels.shape[2] != 3 or pixels.dtype != "uint8"):  # noqa: PLR2004 (not H×W×3)
        pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if pixels.dtype not in ("uint8", "uint16"):
        return None, f"{path.name} holds {pixels.dtype}: save it as 8 or 16 bit"
    return pixels, ""
