"""Decodes the pixels of image messages in every encoding of ROS.

Bayer, mono and 8-bit colour pixels are used without a copy. Other encodings are converted to the nearest frame layout:
an alpha channel is removed, 16-bit colour keeps its high byte, YUV becomes bgr8. 16-bit Bayer and mono data stay
unchanged: images of 12-bit sensors look dark, but lose nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__CompressedImage as CompressedImageMessage
from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__Image as ImageMessage

from shared.errors import SkylaneError, suggestion
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.opencv import MAX_PIXELS, cv2

Bytes = npt.NDArray[np.uint8]


class UndecodableImageError(SkylaneError):
    """An image message was read, but its image cannot be decoded."""


class _Encoding(NamedTuple):
    """Memory layout of a pixel in the message, and the frame layout that it is converted to."""

    layout: Layout
    channels: int = 1
    is_wide: bool = False  # 16 bits per number instead of 8.
    conversion: int | None = None  # OpenCV's conversion code, if the pixels must be converted.

    @property
    def pixel_bytes(self) -> int:
        return self.channels * (2 if self.is_wide else 1)


class _Planar(NamedTuple):
    """A plane of Y followed by a plane of interleaved colour; sizes are in rows of Y."""

    conversion: int
    rows_num: int  # The message has height × rows_num / rows_den rows.
    rows_den: int
    even: bool  # Colour has half the resolution, so both sides must be even.


_ENCODINGS: dict[str, _Encoding] = {
    **{layout.value: _Encoding(layout, is_wide=layout.dtype == np.uint16) for layout in Layout if layout.is_bayer},
    "mono8": _Encoding(Layout.MONO8),
    "8UC1": _Encoding(Layout.MONO8),
    "mono16": _Encoding(Layout.MONO16, is_wide=True),
    "16UC1": _Encoding(Layout.MONO16, is_wide=True),
    "rgb8": _Encoding(Layout.RGB8, 3),
    "bgr8": _Encoding(Layout.BGR8, 3),
    "8UC3": _Encoding(Layout.BGR8, 3),
    "rgba8": _Encoding(Layout.RGB8, 4, conversion=cv2.COLOR_RGBA2RGB),
    "bgra8": _Encoding(Layout.BGR8, 4, conversion=cv2.COLOR_BGRA2BGR),
    "8UC4": _Encoding(Layout.BGR8, 4, conversion=cv2.COLOR_BGRA2BGR),
    "rgb16": _Encoding(Layout.RGB8, 3, is_wide=True),
    "bgr16": _Encoding(Layout.BGR8, 3, is_wide=True),
    "16UC3": _Encoding(Layout.BGR8, 3, is_wide=True),
    "rgba16": _Encoding(Layout.RGB8, 4, is_wide=True, conversion=cv2.COLOR_RGBA2RGB),
    "bgra16": _Encoding(Layout.BGR8, 4, is_wide=True, conversion=cv2.COLOR_BGRA2BGR),
    "16UC4": _Encoding(Layout.BGR8, 4, is_wide=True, conversion=cv2.COLOR_BGRA2BGR),
    "yuv422": _Encoding(Layout.BGR8, 2, conversion=cv2.COLOR_YUV2BGR_UYVY),
    "uyvy": _Encoding(Layout.BGR8, 2, conversion=cv2.COLOR_YUV2BGR_UYVY),
    "yuv422_yuy2": _Encoding(Layout.BGR8, 2, conversion=cv2.COLOR_YUV2BGR_YUYV),
    "yuyv": _Encoding(Layout.BGR8, 2, conversion=cv2.COLOR_YUV2BGR_YUYV),
}
_PLANAR: dict[str, _Planar] = {
    "nv12": _Planar(cv2.COLOR_YUV2BGR_NV12, 3, 2, even=True),
    "nv21": _Planar(cv2.COLOR_YUV2BGR_NV21, 3, 2, even=True),
    "nv24": _Planar(cv2.COLOR_YUV2BGR_YUYV, 3, 1, even=False),
}
_YUV_CHANNELS = 2  # One luma and one of the two chroma values per pixel.
_PICTURE_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND"}
_PICTURE_TAIL_BYTES = 4096  # Padding that cameras may add after the end.
ENCODINGS = (*_ENCODINGS, *_PLANAR)


def decode_image(message: ImageMessage) -> tuple[Pixels, Layout]:
    """Returns the message's pixels, H×W or H×W×3, uint8 or uint16, C-contiguous, and their layout.

    If no conversion is needed, the pixels share the message's memory and are read-only.

    Raises:
        UndecodableImageError: the encoding is unknown, the size is zero or above the limit, or the length of the data
            does not fit the size.
    """
    height, width = message.height, message.width
    _check_size(height, width)
    planar = _PLANAR.get(message.encoding)
    if planar is not None:
        return _decode_planar(message, planar), Layout.BGR8
    encoding = _ENCODINGS.get(message.encoding)
    if encoding is None:
        raise UndecodableImageError(
            f"encoding {message.encoding!r} is not an image encoding{suggestion(message.encoding, ENCODINGS)}"
        )
    rows = _rows(message, height, width * encoding.pixel_bytes)
    if encoding.layout.dtype == np.uint16:
        return _native_uint16(rows, big_endian=bool(message.is_bigendian)), encoding.layout
    if encoding.is_wide:
        # Only the high byte of each 16-bit number is kept, so the byte order need not be changed first.
        rows = np.ascontiguousarray(rows[:, 0 if message.is_bigendian else 1 :: 2])
    if encoding.channels == 1:
        return rows, encoding.layout
    pixels = rows.reshape(height, width, encoding.channels)
    if encoding.conversion is None:
        return pixels, encoding.layout
    if encoding.channels == _YUV_CHANNELS and width % 2:
        raise UndecodableImageError(f"encoding {message.encoding!r} stores pixels in pairs, but the width is {width}")
    return _as_bytes(cv2.cvtColor(pixels, encoding.conversion)), encoding.layout


def decode_compressed_image(message: CompressedImageMessage) -> tuple[Pixels, Layout]:
    """Returns the image in the message, H×W or H×W×3, and its layout.

    The first bytes show whether it is JPEG or PNG, because bags write the format in many ways. The text before a ";" in
    the format is the encoding before compression; only this distinguishes Bayer from grey images. Compressed colour
    images are bgr8, or rgb8 from old recorders that stored them so.

    Raises:
        UndecodableImageError: the data is neither JPEG nor PNG, above the size limit, truncated or damaged.
    """
    data = bytes(message.data)
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise UndecodableImageError(f"format {message.format!r}: {error}") from error
    _check_size(header.height, header.width)
    if _PICTURE_ENDS[header.kind] not in data[-_PICTURE_TAIL_BYTES:]:
        raise UndecodableImageError(f"the {header.kind} of {len(data)} bytes has no end marker: it is truncated")
    try:
        picture: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise UndecodableImageError(f"the {header.kind} is damaged: {error.err}") from error
    if picture is None or picture.dtype not in (np.uint8, np.uint16):
        raise UndecodableImageError(f"the {header.kind} of {len(data)} bytes is damaged")
    source, _, compression = message.format.partition(";")
    if picture.ndim == 2:  # noqa: PLR2004  Rows and columns, no channels.
        return picture, _grey_layout(source.strip(), picture.dtype)
    if picture.dtype == np.uint16:
        picture = picture >> 8
    if picture.shape[2] == 4:  # noqa: PLR2004  Blue, green, red, alpha.
        picture = cv2.cvtColor(picture.astype(np.uint8, copy=False), cv2.COLOR_BGRA2BGR)
    layout = Layout.RGB8 if "compressed rgb" in compression else Layout.BGR8
    return np.ascontiguousarray(picture, np.uint8), layout


def _grey_layout(source: str, dtype: np.dtype[Any]) -> Layout:
    """Returns the layout of an image with one channel whose encoding before compression was `source`."""
    bits = "16" if dtype == np.uint16 else "8"
    if source.startswith("bayer_"):
        layout = f"{source.rstrip('0123456789')}{bits}"
        if layout in list(Layout):
            return Layout(layout)
        raise UndecodableImageError(f"encoding {source!r} is not an image encoding{suggestion(source, ENCODINGS)}")
    return Layout(f"mono{bits}")


def _decode_planar(message: ImageMessage, planar: _Planar) -> Bytes:
    height, width = message.height, message.width
    if planar.even and (height % 2 or width % 2):
        raise UndecodableImageError(
            f"encoding {message.encoding!r} stores 2×2 blocks, but the size is {width}×{height}"
        )
    rows = _rows(message, height * planar.rows_num // planar.rows_den, width)
    if planar.even:
        return _as_bytes(cv2.cvtColor(rows, planar.conversion))
    # OpenCV cannot decode NV24, so each pixel is doubled, which gives YUYV, and every second pixel of the result is kept.
    doubled = np.empty((height, width, 4), np.uint8)
    doubled[..., 0] = doubled[..., 2] = rows[:height]
    doubled[..., 1::2] = rows[height:].reshape(height, width, 2)
    colour = _as_bytes(cv2.cvtColor(doubled.reshape(height, 2 * width, 2), planar.conversion))
    return np.ascontiguousarray(colour[:, ::2])


def _check_size(height: int, width: int) -> None:
    if not height or not width:
        raise UndecodableImageError(f"the image is {width}×{height}: it is empty")
    if height * width > MAX_PIXELS:
        raise UndecodableImageError(f"the image is {width}×{height}: more than {MAX_PIXELS} pixels")


def _rows(message: ImageMessage, count: int, row_bytes: int) -> Bytes:
    """Returns the rows of the message without padding, uint8, count×row_bytes."""
    step = message.step or row_bytes  # Some drivers leave it 0.
    if step < row_bytes:
        raise UndecodableImageError(
            f"a row of {message.width} pixels in {message.encoding!r} takes {row_bytes} bytes, but the step is {step}"
        )
    if len(message.data) != count * step:
        raise UndecodableImageError(
            f"{message.width}×{message.height} in {message.encoding!r} with a step of {step} takes "
            f"{count * step} bytes, but there are {len(message.data)}"
        )
    rows = message.data.reshape(count, step)
    return rows if step == row_bytes else np.ascontiguousarray(rows[:, :row_bytes])


def _native_uint16(rows: Bytes, *, big_endian: bool) -> npt.NDArray[np.uint16]:
    numbers = rows.view(">u2" if big_endian else "<u2")
    # ROS 1 does not align fields, and some consumers need even addresses: copy only if the address is odd.
    return np.require(numbers.astype(np.uint16, copy=False), requirements="A")


def _as_bytes(picture: npt.NDArray[Any]) -> Bytes:
    """Narrows the type of OpenCV's result: every conversion here returns uint8."""
    return picture.astype(np.uint8, copy=False)
