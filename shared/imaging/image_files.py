"""Picture files for people: read with bounds, written as PNG, stamped where the weights are random."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError, unwritable_message
from shared.imaging.image_codecs import ImageCodecError, ImageLimits, image_size
from shared.imaging.opencv import cv2

Picture = npt.NDArray[np.uint8]

UNTRAINED = "untrained weights"

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)


class ImageFileError(SkylaneError):
    """A picture file that cannot be read or written."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


def read_image_file(path: Path, limits: ImageLimits = ImageLimits()) -> Picture:  # noqa: B008  Frozen.
    """A JPEG or PNG as H×W×3 uint8, RGB; its size is read before memory is taken for it.

    Raises:
        ImageFileError: it cannot be read, is too large or is no whole JPEG or PNG.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limits.max_bytes + 1)
    except OSError as error:
        raise ImageFileError(path, f"cannot be read ({error.strerror})") from error
    if len(data) > limits.max_bytes:
        raise ImageFileError(path, f"is larger than {limits.max_bytes} bytes: give a smaller picture")
    try:
        return decode_to_rgb(data, limits)
    except ImageCodecError as error:
        raise ImageFileError(path, str(error)) from error


def decode_to_rgb(data: bytes, limits: ImageLimits) -> Picture:
    """A JPEG or PNG of any kind as people see it: H×W×3 uint8, RGB.

    A grey one becomes colour, transparency is left out, 16 bits become 8, and a photograph is turned as its EXIF
    orientation says.

    Raises:
        ImageCodecError: it is too large or no whole JPEG or PNG; its size is read before memory is taken for it.
    """
    height, width, _ = image_size(data)
    if height * width > limits.max_pixels:
        raise ImageCodecError(f"picture is {height}×{width}, more than {limits.max_pixels} pixels: scale it down")
    try:
        decoded: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        raise ImageCodecError(f"picture is damaged: {error.err}") from error
    if decoded is None:
        raise ImageCodecError("picture is damaged: it cannot be decoded")
    return np.asarray(decoded, np.uint8)


def write_png(path: Path, picture: Picture) -> None:
    """Write H×W (class ids, as they are) or H×W×3 (RGB) uint8 as a PNG; its folder is made.

    Raises:
        ImageFileError: the file cannot be written.
    """
    stored: Any = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture  # noqa: PLR2004  H, W, C.
    done, data = cv2.imencode(".png", stored)
    assert done
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise ImageFileError(path, unwritable_message("it", error, "folder")) from error


def stamp_untrained(rgb: Picture) -> Picture:
    """A copy of an RGB H×W×3 picture with "untrained weights" written across its top, as wide as a third of it."""
    stamped = rgb.copy()
    (width, height), _ = cv2.getTextSize(UNTRAINED, _FONT, 1.0, 2)
    scale = max(0.3, rgb.shape[1] / 3 / width)
    place = (round(8 * scale), round(1.5 * height * scale))
    stroke = max(1, round(2 * scale))
    rim = max(1, round(scale))
    # Legible on any ground. A thicker stroke in black below would not do: some versions of OpenCV set it wider.
    for right, down in product((-rim, 0, rim), repeat=2):
        cv2.putText(stamped, UNTRAINED, (place[0] + right, place[1] + down), _FONT, scale, _BLACK, stroke, cv2.LINE_AA)
    cv2.putText(stamped, UNTRAINED, place, _FONT, scale, _WHITE, stroke, cv2.LINE_AA)
    return stamped
