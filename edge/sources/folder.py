"""The folder source: image files, in the natural order of their names."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from edge.sources.image_times import read_times
from edge.sources.source import IMAGE_SUFFIXES, SourceError
from shared import clock
from shared.errors import SkylaneError
from shared.files import file_sha256, natural_key, natural_path_key
from shared.imaging.bit_depth import MEASURED_FRAMES, BitDepth, Bits
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame, names_depth
from shared.imaging.image_files import decode_picture
from shared.imaging.opencv import MAX_PIXELS
from shared.logs import get_logger
from shared.sanitize import printable

_RATE_HZ = 10.0  # The rate of images whose times are unknown.
_PERIOD_NS = round(1e9 / _RATE_HZ)
_MAX_BYTES = 8 * MAX_PIXELS  # More than the largest image has without compression.
_DEPTH = 3  # Levels of subfolders: EuRoC has mav0/CAMERA/data.

_NO_LOSS = (*IMAGE_SUFFIXES, "", ".txt", ".csv", ".json", ".yaml", ".yml", ".xml", ".md")  # Of files beside images.

_LOG = get_logger("edge")


class _Image(NamedTuple):
    """An image file, with its number among the played ones of its camera."""

    time_ns: int
    camera: str
    number: int
    path: Path


class FolderSource:
    """A folder of images as one camera, or of subfolders with the images of one camera each.

    The times of the images are those in their names or in a list beside them, see `image_times`; without them, there are
    10 images per second and camera. Colour images become bgr8, grey images mono8 or mono16. `skylane bag extract` writes
    such subfolders; `topics` are their names.
    """

    def __init__(
        self,
        path: Path,
        *,
        topics: Sequence[str] = (),
        start_offset_s: float = 0.0,
        duration_s: float | None = None,
        bits: Bits = "auto",
    ) -> None:
        self._path = path
        self._notes: list[str] = []
        cameras = self._cameras(topics)
        times = self._times(cameras)
        start_ns = min(map(min, times.values())) + round(start_offset_s * 1e9)
        end_ns = None if duration_s is None else start_ns + round(duration_s * 1e9)
        self._images: list[_Image] = []
        for camera, images in cameras.items():
            chosen = (
                (time_ns, image)
                for time_ns, image in sorted(zip(times[camera], images, strict=True), key=itemgetter(0))
                if time_ns >= start_ns and (end_ns is None or time_ns < end_ns)
            )
            self._images += [_Image(time_ns, camera, index, image) for index, (time_ns, image) in enumerate(chosen)]
        self._images.sort(key=lambda image: (image.time_ns, natural_key(image.camera)))
        if not self._images:
            total = sum(map(len, cameras.values()))
            raise SourceError(f"folder {path} has {total} images, none of them in the selected time")
        self._depths = {camera: BitDepth(camera, bits, self._note) for camera in cameras}
        for camera, depth in self._depths.items():
            depth.measure(_first_images(cameras[camera]))

    @property
    def frame_count(self) -> int | None:
        """See FrameSource."""
        return len(self._images)

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource. The rate is that of images whose times are unknown."""
        digest = hashlib.sha256()
        for image in self._images:
            name = str(image.path.relative_to(self._path)).encode("utf-8", "surrogateescape")
            digest.update(name + b"\0" + _content_hash(image.path))
        identity: dict[str, str | int | float | list[str]] = {
            "kind": "folder",
            "path": self._path.name,
            "sha256": digest.hexdigest(),
        }
        return identity | ({"rate_hz": _RATE_HZ} if self._is_invented else {}) | {"notes": [*self._notes]}

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        for time_ns, camera, index, path in self._images:
            started_ns = clock.now_ns()
            try:
                pixels = _read(path)
                layout = Layout.BGR8 if pixels.ndim == 3 else Layout(f"mono{8 * pixels.itemsize}")  # noqa: PLR2004 (H×W×3)
                pixels = self._depths[camera].scaled(pixels, layout, index)
            except SkylaneError as error:
                reason = f"{path.name}: {error}"
                yield UnreadableFrame(camera, index, time_ns, time_ns, clock.now_ns() - started_ns, printable(reason))
                continue
            yield Frame(pixels, layout, camera, index, time_ns, time_ns, clock.now_ns() - started_ns)

    def close(self) -> None:
        """See FrameSource. No file stays open."""

    def _cameras(self, wanted: Sequence[str]) -> dict[str, list[Path]]:
        """Returns the image files of each camera in order."""
        path = self._path
        try:
            images = _images(path)
            found = {path.name: images} if images else dict(_subfolders(path, _DEPTH))
        except OSError as error:
            raise SourceError(f"{error.filename} cannot be read ({error.strerror}): give a readable folder") from error
        if images and wanted:
            raise SourceError(f"folder {path} holds one camera: leave --topic out")
        if unknown := set(wanted) - set(found):
            raise SourceError(f"folder {path} has no camera {min(unknown)!r}: it has {', '.join(found)}")
        if not wanted:
            self._note_left_out({images[0].parent for images in found.values()})
        depths = [name for name in found if names_depth(name) and len(found) > 1]
        if wanted or len(depths) == len(found):
            return {name: images for name, images in found.items() if not wanted or name in wanted}
        for name in depths:
            self._note(
                f"{name} is not taken for a camera, because its name says that it holds distances: name it by --topic"
            )
        return {name: images for name, images in found.items() if name not in depths}

    def _note_left_out(self, played: set[Path]) -> None:
        """Notes other files beside the images, and folders with images that are not played."""
        left: list[Path] = []
        for name, _, files in os.walk(self._path):
            others = [Path(name, each) for each in files if Path(each).suffix.lower() not in _NO_LOSS]
            has_images = any(each.lower().endswith(IMAGE_SUFFIXES) for each in files)
            left += others if Path(name) in played else [Path(name)] * has_images
        if left:
            names = [str(each.relative_to(self._path)) for each in sorted(left, key=natural_path_key)[:3]]
            self._note(f"not played: {', '.join(names)} (total: {len(left)})")

    def _times(self, cameras: dict[str, list[Path]]) -> dict[str, Sequence[int]]:
        """Returns the times of each camera's images, in ns."""
        read = {camera: read_times(images) for camera, images in cameras.items()}
        problems = [f"{camera}: {times.problem}" for camera, times in read.items() if times.problem]
        if len({times.is_absolute for times in read.values()}) > 1 and not problems:
            problems = ["some cameras have dates, others times since a start"]
        self._is_invented = bool(problems)
        if not problems:
            return {camera: times.times_ns for camera, times in read.items()}
        self._note(f"the stamps and the rate of {_RATE_HZ:g} images per second are invented: {'; '.join(problems)}")
        return {camera: range(0, len(images) * _PERIOD_NS, _PERIOD_NS) for camera, images in cameras.items()}

    def _note(self, text: str) -> None:
        self._notes.append(printable(text))
        _LOG.warning("source noted", source=self._path.name, reason=self._notes[-1])


def _subfolders(path: Path, depth: int, prefix: str = "") -> Iterator[tuple[str, list[Path]]]:
    """Yields the subfolders that hold images, by name; CAMERA/data is called CAMERA."""
    for folder in sorted((item for item in path.iterdir() if item.is_dir()), key=natural_path_key):
        if images := _images(folder):
            yield prefix.rstrip("/") if prefix and folder.name == "data" else prefix + folder.name, images
        elif depth > 1:
            yield from _subfolders(folder, depth - 1, f"{prefix}{folder.name}/")


def _images(path: Path) -> list[Path]:
    return sorted((item for item in path.iterdir() if item.suffix.lower() in IMAGE_SUFFIXES), key=natural_path_key)


def _content_hash(path: Path) -> bytes:
    """Returns the SHA-256 of a file; nothing if it is none, or cannot be read."""
    try:
        return bytes.fromhex(file_sha256(path)) if path.is_file() else b""
    except OSError:
        return b""


def _first_images(images: Sequence[Path]) -> Iterator[Pixels]:
    """Yields the first images of a camera that can be read."""
    for path in images[:MEASURED_FRAMES]:
        with suppress(SkylaneError):
            yield _read(path)


def _read(path: Path) -> Pixels:
    """Returns an image as H×W×3 (BGR) or H×W, uint8 or uint16.

    Raises:
        SkylaneError: it is no file, or no image that can be read.
    """
    try:
        if not path.is_file():
            raise SourceError("it is not a file")
        if path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"it is larger than {_MAX_BYTES} bytes: give a smaller image")
        return decode_picture(path.read_bytes())
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})") from error
