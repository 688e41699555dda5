"""Reading and writing of image files, and the stamp on results of untrained models."""

from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import MissingExtraError, SkylaneError, unwritable_message
from shared.files import missing_content, open_file, read_file, write_file
from shared.imaging.built_in_codecs import encode_file
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_codecs import ImageCodecError, ImageLimits, image_size
from shared.imaging.image_header import JPEG_SIGNATURE, PNG_SIGNATURE, ImageHeaderError, read_header
from shared.imaging.opencv import MAX_PIXELS, cv2
from shared.registry import Entry, load

ImageArray = npt.NDArray[np.uint8]  # H×W×3, RGB.


_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)
_MISSING = 128  # OpenCV fills the missing end of a JPEG with this grey.
_CHECKS = {"JPEG check": Entry("shared.imaging.video_decoder:is_whole_jpeg", "edge")}


class ImageFileError(SkylaneError):
    """An image file cannot be read or written."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


def read_image_file(path: Path, limits: ImageLimits = ImageLimits()) -> ImageArray:  # noqa: B008  Frozen.
    """Reads a JPEG or PNG file with `decode_to_rgb`.

    Raises:
        ImageFileError: The file cannot be read, is too large, or is not a complete JPEG or PNG.
    """
    try:
        with open_file(path) as file:
            data = file.read(limits.max_bytes + 1)
    except OSError as error:
        raise ImageFileError(path, f"cannot be read ({error.strerror})") from error
    if len(data) > limits.max_bytes:
        raise ImageFileError(path, f"is larger than {limits.max_bytes} bytes: give a smaller image")
    try:
        return decode_to_rgb(data, limits)
    except ImageCodecError as error:
        raise ImageFileError(path, str(error)) from error


def decode_to_rgb(data: bytes, limits: ImageLimits) -> ImageArray:
    """Decodes any JPEG or PNG to H×W×3 uint8, RGB.

    Converts grey to colour and 16 bits to 8, drops transparency and applies the EXIF orientation. Checks the size before
    allocating memory.

    Raises:
        ImageCodecError: The image is too large, or not a complete JPEG or PNG.
    """
    return np.asarray(_decode(data, limits.max_pixels, cv2.IMREAD_COLOR_RGB), np.uint8)


def decode_unchanged(data: bytes) -> Pixels:
    """Decodes a JPEG or PNG as it is: H×W, or H×W×C in the order blue, green, red, opacity; uint8 or uint16.

    Raises:
        ImageCodecError: The image is too large, or not a complete JPEG or PNG.
    """
    return _decode(data, MAX_PIXELS, cv2.IMREAD_UNCHANGED)


def _decode(data: bytes, max_pixels: int, flags: int) -> Pixels:
    height, width, _ = image_size(data)
    _check_size(height, width, max_pixels)
    try:
        decoded: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageCodecError(f"image is damaged: {error.err}") from error
    if decoded is None:
        raise ImageCodecError("image is damaged: it cannot be decoded")
    return np.asarray(decoded)


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise ImageCodecError(f"image is {height}×{width}, more than {max_pixels} pixels: scale it down")


def read_mask(path: Path) -> npt.NDArray[np.uint8]:
    """Reads a mask that a sink stored: H×W class ids.

    Raises:
        ImageFileError: it cannot be read, or is not a mask.
    """
    try:
        mask = decode_unchanged(read_file(path))
    except OSError as error:
        raise ImageFileError(path, f"cannot be read ({error.strerror})") from error
    except ImageCodecError as error:
        raise ImageFileError(path, f"is not a mask: {error}") from error
    if mask.ndim != 2 or mask.dtype != np.uint8:  # Rows and columns.
        raise ImageFileError(path, "is not a mask of class ids, of 8 bits: play the run again")
    return np.asarray(mask, np.uint8)


def decode_picture(data: bytes, *, upright: bool = True) -> Pixels:
    """Decodes a file of any format that OpenCV reads to H×W (grey) or H×W×3 (BGR), uint8 or uint16, without transparency.

    `upright`: whether to apply the EXIF orientation. The values of 16 bits are as in the file.

    Raises:
        ImageCodecError: The data is no image, incomplete, or its values are not of 8 or 16 bits.
    """
    if problem := missing_content(data[:64]):
        raise ImageCodecError(f"it {problem}")
    is_animated_webp = data[8:16] == b"WEBPVP8X" and data[20:21] and data[20] & 2
    if is_animated_webp or (data.startswith(PNG_SIGNATURE) and b"acTL" in data[: data.find(b"IDAT")]):
        raise ImageCodecError("it is animated: give a single image")
    flags = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR | (0 if upright else cv2.IMREAD_IGNORE_ORIENTATION)
    try:
        decoded: Any = cv2.imdecode(array := np.frombuffer(data, np.uint8), flags)
        pages = cv2.imdecodemulti(array, flags, range=(1, 2))[1] if data[:2] in (b"II", b"MM") else ()
    except cv2.error as error:
        with suppress(ImageHeaderError):
            header = read_header(data)
            _check_size(header.height, header.width, MAX_PIXELS)
        raise ImageCodecError(f"image is damaged: {error.err}") from error
    if decoded is None:
        raise ImageCodecError("it is no image that OpenCV can read, or it is incomplete")
    if any(page.shape == decoded.shape for page in pages):  # Smaller ones are previews.
        raise ImageCodecError("it has several pages: save each as an image of its own")
    if decoded.dtype not in (np.uint8, np.uint16):
        raise ImageCodecError(f"it holds {decoded.dtype}: save it as 8 or 16 bit")
    corners = decoded[[0, 0, -1, -1], [0, -1, 0, -1]].reshape(4, -1)
    if data.startswith(JPEG_SIGNATURE) and (corners == _MISSING).all(1).any():
        with suppress(MissingExtraError):  # Without PyAV, such a picture is not checked.
            if not load("check", _CHECKS, "JPEG check")(data):
                raise ImageCodecError("image is damaged: its data ends before the picture")
    return np.asarray(decoded)


def write_png(path: Path, image: npt.NDArray[np.uint8]) -> None:
    """Writes H×W (such as class ids) or H×W×3 (RGB) uint8 as a PNG; creates missing folders.

    Raises:
        ImageFileError: The file cannot be written.
    """
    data = encode_file(".png", image, Layout.RGB8 if image.ndim == 3 else Layout.MONO8, [])  # H, W, C.
    try:
        write_file(path, bytes(data))
    except OSError as error:
        raise ImageFileError(path, unwritable_message("it", error, "folder")) from error


def stamp(rgb: ImageArray, text: str) -> ImageArray:
    """Returns a copy of an H×W×3 RGB image with a text, a third of its width, at the top left."""
    stamped = rgb.copy()
    (width, height), _ = cv2.getTextSize(text, _FONT, 1.0, 2)
    scale = max(0.3, rgb.shape[1] / 3 / width)
    left, bottom = round(8 * scale), round(1.5 * height * scale)
    thickness = max(1, round(2 * scale))
    outline = max(1, round(scale))
    # A black outline keeps the text legible. It is not drawn as thicker text, which some OpenCV versions space wider.
    for dx, dy in product((-outline, 0, outline), repeat=2):
        cv2.putText(stamped, text, (left + dx, bottom + dy), _FONT, scale, _BLACK, thickness, cv2.LINE_AA)
    cv2.putText(stamped, text, (left, bottom), _FONT, scale, _WHITE, thickness, cv2.LINE_AA)
    return stamped
