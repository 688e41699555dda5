"""From an image message's bytes to a frame's pixels, for every encoding a picture comes in.

Bayer, mono and 8-bit colour pixels are taken as they lie, without a copy; what a frame has no layout for is brought to
the nearest one it has: four channels lose their alpha, 16-bit colour keeps its high byte, YUV becomes bgr8. 16-bit
Bayer and mono data stay as they are: 12-bit sensors that do not use the full range look dark and lose nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rosbag_tools.messages.images import CompressedImageMessage, ImageMessage
from shared.errors import SkylaneError, suggestion
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.opencv import MAX_PIXELS, cv2

Bytes = npt.NDArray[np.uint8]


class UndecodableImageError(SkylaneError):
    """An image message was read, but no picture can be made of it."""


class _Encoding(NamedTuple):
    """How one pixel lies in the message, and what it becomes."""

    layout: Layout
    channels: int = 1
    is_wide: bool = False  # 16 bits a number, not 8.
    conversion: int | None = None  # OpenCV's colour code, where pixels must change.

    @property
    def pixel_bytes(self) -> int:
        return self.channels * (2 if self.is_wide else 1)


class _Planar(NamedTuple):
    """A full plane of Y, then a plane of interleaved colour; the size of both counted in rows of Y."""

    conversion: int
    rows_num: int  # The message has height × rows_num / rows_den rows.
    rows_den: int
    even: bool  # Colour is halved, so that both sides must be even.


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
_YUV_CHANNELS = 2  # A brightness for each pixel, a colour difference for every other.
_PICTURE_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND"}
_PICTURE_TAIL_BYTES = 4096  # Cameras may pad behind the end.
ENCODINGS = (*_ENCODINGS, *_PLANAR)


def decode_image(message: ImageMessage) -> tuple[Pixels, Layout]:
    """The message's pixels, H×W or H×W×3, uint8 or uint16, C-contiguous, and their layout.

    They share the message's memory (and are then read-only) where its bytes are already what a frame holds.

    Raises:
        UndecodableImageError: an unknown encoding, a size of zero or beyond the limit, or data that is not as long as
            the size says.
    """
    height, width = message.height, message.width
    _check_size(height, width)
    planar = _PLANAR.get(message.encoding)
    if planar is not None:
        return _decode_planar(message, planar), Layout.BGR8
    encoding = _ENCODINGS.get(message.encoding)
    if encoding is None:
        raise UndecodableImageError(
            f"encoding {message.encoding!r} is no picture{suggestion(message.encoding, ENCODINGS)}"
        )
    rows = _rows(message, height, width * encoding.pixel_bytes)
    if encoding.layout.dtype == np.uint16:
        return _native_uint16(rows, big_endian=message.is_bigendian), encoding.layout
    if encoding.is_wide:
        # The high byte is what is left of a 16-bit number in eight: no need to put its bytes in order first.
        rows = np.ascontiguousarray(rows[:, 0 if message.is_bigendian else 1 :: 2])
    if encoding.channels == 1:
        return rows, encoding.layout
    pixels = rows.reshape(height, width, encoding.channels)
    if encoding.conversion is None:
        return pixels, encoding.layout
    if encoding.channels == _YUV_CHANNELS and width % 2:
        raise UndecodableImageError(f"encoding {message.encoding!r} holds pixels in pairs, but the width is {width}")
    return _as_bytes(cv2.cvtColor(pixels, encoding.conversion)), encoding.layout


def decode_compressed_image(message: CompressedImageMessage) -> tuple[Pixels, Layout]:
    """The picture within the message, H×W or H×W×3, and its layout.

    The bytes say whether it is a JPEG or a PNG, for bags spell the format in many ways; what stands before a ";" in
    the format is the encoding before compression, which alone tells a Bayer picture from a grey one. Compressed colour
    comes as bgr8, or as rgb8 from the old recorders that stored it so.

    Raises:
        UndecodableImageError: neither JPEG nor PNG, a size beyond the limit, truncated or damaged.
    """
    data = bytes(message.data)
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise UndecodableImageError(f"format {message.format!r}: {error}") from error
    _check_size(header.height, header.width)
    if _PICTURE_ENDS[header.kind] not in data[-_PICTURE_TAIL_BYTES:]:
        raise UndecodableImageError(f"the {header.kind} of {len(data)} bytes has no end: it is truncated")
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
    """The layout of a picture with one channel, which was `source` before it was compressed."""
    bits = "16" if dtype == np.uint16 else "8"
    if source.startswith("bayer_"):
        layout = f"{source.rstrip('0123456789')}{bits}"
        if layout in list(Layout):
            return Layout(layout)
        raise UndecodableImageError(f"encoding {source!r} is no picture{suggestion(source, ENCODINGS)}")
    return Layout(f"mono{bits}")


def _decode_planar(message: ImageMessage, planar: _Planar) -> Bytes:
    height, width = message.height, message.width
    if planar.even and (height % 2 or width % 2):
        raise UndecodableImageError(f"encoding {message.encoding!r} holds 2×2 blocks, but the size is {width}×{height}")
    rows = _rows(message, height * planar.rows_num // planar.rows_den, width)
    if planar.even:
        return _as_bytes(cv2.cvtColor(rows, planar.conversion))
    # OpenCV knows no NV24. With each pixel doubled it is YUYV, whose every second pixel is the picture.
    doubled = np.empty((height, width, 4), np.uint8)
    doubled[..., 0] = doubled[..., 2] = rows[:height]
    doubled[..., 1::2] = rows[height:].reshape(height, width, 2)
    colour = _as_bytes(cv2.cvtColor(doubled.reshape(height, 2 * width, 2), planar.conversion))
    return np.ascontiguousarray(colour[:, ::2])


def _check_size(height: int, width: int) -> None:
    if not height or not width:
        raise UndecodableImageError(f"the picture is {width}×{height}: there is nothing in it")
    if height * width > MAX_PIXELS:
        raise UndecodableImageError(f"the picture is {width}×{height}: more than {MAX_PIXELS} pixels")


def _rows(message: ImageMessage, count: int, row_bytes: int) -> Bytes:
    """The message's rows without their padding: count×row_bytes."""
    step = message.step or row_bytes  # Some drivers leave it empty.
    if step < row_bytes:
        raise UndecodableImageError(
            f"a row of {message.width} pixels in {message.encoding!r} takes {row_bytes} bytes, but the step is {step}"
        )
    if len(message.data) != count * step:
        raise UndecodableImageError(
            f"{message.width}×{message.height} in {message.encoding!r} with a step of {step} takes "
            f"{count * step} bytes, but there are {len(message.data)}"
        )
    rows = np.frombuffer(message.data, np.uint8).reshape(count, step)
    return rows if step == row_bytes else np.ascontiguousarray(rows[:, :row_bytes])


def _native_uint16(rows: Bytes, *, big_endian: bool) -> npt.NDArray[np.uint16]:
    numbers = rows.view(">u2" if big_endian else "<u2")
    # ROS 1 aligns nothing, and some readers of 16-bit data need even addresses: a copy only where they are odd.
    return np.require(numbers.astype(np.uint16, copy=False), requirements="A")


def _as_bytes(picture: npt.NDArray[Any]) -> Bytes:
    """OpenCV's result under its true type: every conversion here yields uint8."""
    return picture.astype(np.uint8, copy=False)
