"""Decodes the pixels of image messages in ROS's encodings of pictures.

Bayer, mono and 8-bit colour pixels are used without a copy where their bytes allow it. Other encodings are converted to the nearest frame layout:
an alpha channel is removed, YUV becomes bgr8. 16-bit values stay as recorded; `shared.imaging.bit_depth` scales them.
The names of GenICam (PFNC) and V4L2 are accepted, too.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__CompressedImage as CompressedImageMessage
from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__Image as ImageMessage

from shared.errors import SkylaneError, suggestion
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_files import decode_picture
from shared.imaging.image_header import JPEG_SIGNATURE, PNG_SIGNATURE, ImageHeaderError, jpeg_end, read_header
from shared.imaging.opencv import MAX_PIXELS, cv2

Bytes = npt.NDArray[np.uint8]


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
ENCODINGS = (*_ENCODINGS, *_PLANAR)

_PATTERNS = {"rg": "rggb", "gr": "grbg", "gb": "gbrg", "bg": "bggr"}  # PFNC names only the first row.
_PACKED = re.compile(r"(10|12|14)(_?csi2)?(p|packed)$|^rgb10p32$|^(rgb|bgr)\d\dv\dpacked$")
_NOT_PICTURES = re.compile(r"^(8s|16s|32s|32f|64f)c\d+$|^coord3d|^confidence")
_NEAR = 40  # Maximum length of an unknown name in an error message.


def _other_names() -> Iterator[tuple[str, tuple[str, int | None]]]:
    """Yields names of other systems in lower case, each with the name in ROS, and the bits of a value if the name states them."""
    yield from ((name.casefold(), (name, None)) for name in ENCODINGS)
    for bits in (8, 10, 12, 14, 16):
        size, used = (8 if bits == 8 else 16), (bits if bits in {10, 12, 14} else None)
        for first_row, pattern in _PATTERNS.items():
            for name in (f"bayer{first_row}{bits}", f"bayer_{pattern}{bits}", f"s{pattern}{bits}"):
                yield name, (f"bayer_{pattern}{size}", used)
        for name in (f"mono{bits}", f"gray{bits}", f"y{bits}"):
            yield name, (f"mono{size}", used)
        for order in ("rgb", "bgr"):
            yield f"{order}{bits}", (f"{order}{size}", used)
    for name in ("rgb8", "bgr8", "rgba8", "bgra8"):
        yield f"{name}packed", (name, None)  # These have whole bytes although their names say packed.
    others = {"grey": "mono8", "rgb24": "rgb8", "bgr24": "bgr8", "yuy2": "yuyv"}
    yuyv = dict.fromkeys(("yuv422_8", "ycbcr422_8", "yuv422_yuyv_packed"), "yuyv")
    uyvy = dict.fromkeys(("yuv422_8_uyvy", "ycbcr422_8_cbycry", "yuv422packed", "yuv422_packed"), "uyvy")
    yield from ((name, (encoding, None)) for name, encoding in (others | yuyv | uyvy).items())


_NAMES = dict(_other_names())


class RecordedImage(NamedTuple):
    """An image with its values as recorded: uint8, or uint16 also if the layout is one of 8-bit colour."""

    pixels: Pixels
    layout: Layout
    bits: int | None = None  # The bits of a 16-bit value, if the name of the encoding states them.


def encoding_of(name: str) -> tuple[str, int | None]:
    """Returns the name of an encoding in ROS, and the bits of a 16-bit value if the given name states them.

    Raises:
        SkylaneError: the encoding is unknown, or cannot be decoded.
    """
    if name in _ENCODINGS or name in _PLANAR:
        return name, None
    lowered = name.strip().casefold()
    if lowered in _NAMES:
        return _NAMES[lowered]
    shown = repr(name[:_NEAR])
    if _NOT_PICTURES.search(lowered):
        raise SkylaneError(
            f"encoding {shown} is not an image encoding: it holds numbers such as depths, so leave the topic out"
        )
    if _PACKED.search(lowered):
        raise SkylaneError(
            f"encoding {shown} is not an image encoding that can be read: it packs values without padding, so record whole bytes, "
            "such as Mono8, Mono16 or BayerRG16"
        )
    raise SkylaneError(
        f"encoding {shown} is not an image encoding, give the right one by --encoding{suggestion(lowered[:_NEAR], ENCODINGS)}"
    )


def recorded_image(message: ImageMessage, encoding: str = "") -> RecordedImage:
    """Returns the message's image, H×W or H×W×3, C-contiguous. `encoding` replaces the recorded one.

    If no conversion is needed, the pixels share the message's memory and are read-only.

    Raises:
        SkylaneError: the encoding is unknown, the size is zero or above the limit, or the length of the data
            does not fit the size.
    """
    height, width = message.height, message.width
    _check_size(height, width)
    name, bits = encoding_of(encoding or message.encoding)
    planar = _PLANAR.get(name)
    if planar is not None:
        return RecordedImage(_decode_planar(message, name, planar), Layout.BGR8)
    known = _ENCODINGS[name]
    rows: Any = _rows(message, name, height, width * known.pixel_bytes)
    if known.is_wide:
        rows = _native_uint16(rows, big_endian=bool(message.is_bigendian))
    if known.channels == 1:
        return RecordedImage(rows, known.layout, bits)
    pixels = rows.reshape(height, width, known.channels)
    if known.conversion is None:
        return RecordedImage(pixels, known.layout, bits)
    if known.channels == _YUV_CHANNELS and width % 2:
        raise SkylaneError(f"encoding {name!r} stores pixels in pairs, but the width is {width}")
    converted: Any = cv2.cvtColor(pixels, known.conversion)
    return RecordedImage(converted, known.layout, bits)


def recorded_compressed_image(message: CompressedImageMessage) -> RecordedImage:
    """Returns the image in the message, H×W or H×W×3; rotated as its EXIF data says, unless it is a Bayer image.

    The first bytes determine the format, because bags name it in many ways; bytes behind a JPEG are ignored. The text before a ";" in
    the format is the encoding before compression; only this distinguishes Bayer from grey images. Compressed colour
    images are bgr8, or rgb8 from old recorders that stored them so.

    Raises:
        SkylaneError: the data is no image that OpenCV can read, above the size limit, truncated or damaged.
    """
    data = bytes(message.data)
    source, _, compression = (part.strip() for part in message.format.partition(";"))
    if "compresseddepth" in message.format.casefold():
        raise SkylaneError(f"format {message.format[:_NEAR]!r} holds depths, not an image: leave the topic out")
    kind, is_colour, header = f"format {message.format[:_NEAR]!r}", True, None
    if data.startswith((JPEG_SIGNATURE, PNG_SIGNATURE)):
        try:
            header = read_header(data)
        except ImageHeaderError as error:
            raise SkylaneError(f"{kind}: {error}") from error
        _check_size(header.height, header.width)
        kind, is_colour = f"the {header.kind} of {len(data)} bytes is damaged", header.channels > 1
        if header.kind == "jpeg":
            if not (end := jpeg_end(data)):
                raise SkylaneError(f"the jpeg of {len(data)} bytes has no end marker: it is truncated")
            data = data[:end]
    try:
        picture = decode_picture(data, upright=is_colour or not _is_bayer(source))
    except SkylaneError as error:
        remedy = "" if header else "; record JPEG or PNG, or leave the topic out"
        raise SkylaneError(f"{kind}: {error}{remedy}") from error
    _check_size(*picture.shape[:2])
    if picture.ndim == 2:  # Rows and columns, no channels.
        return _grey_image(picture, source)
    return RecordedImage(picture, Layout.RGB8 if "compressed rgb" in compression else Layout.BGR8)


def _grey_image(picture: Pixels, source: str) -> RecordedImage:
    """Returns an image with one channel whose encoding before compression was `source`."""
    bits = 8 * picture.itemsize
    if _is_bayer(source):
        name, used = encoding_of(source)
        return RecordedImage(picture, Layout(f"{name.rstrip('0123456789')}{bits}"), used)
    return RecordedImage(picture, Layout(f"mono{bits}"), _NAMES.get(source.casefold(), ("", None))[1])


def _is_bayer(encoding: str) -> bool:
    return encoding.casefold().startswith("bayer")


def _decode_planar(message: ImageMessage, encoding: str, planar: _Planar) -> Bytes:
    height, width = message.height, message.width
    if planar.even and (height % 2 or width % 2):
        raise SkylaneError(f"encoding {encoding!r} stores 2×2 blocks, but the size is {width}×{height}")
    rows = _rows(message, encoding, height * planar.rows_num // planar.rows_den, width)
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
        raise SkylaneError(f"the image is {width}×{height}: it is empty")
    if height * width > MAX_PIXELS:
        raise SkylaneError(f"the image is {width}×{height}: more than {MAX_PIXELS} pixels")


def _rows(message: ImageMessage, encoding: str, count: int, row_bytes: int) -> Bytes:
    """Returns the rows of the message without padding, uint8, count×row_bytes."""
    step = message.step or row_bytes  # Some drivers leave it 0.
    if step < row_bytes:
        raise SkylaneError(
            f"a row of {message.width} pixels in {encoding!r} takes {row_bytes} bytes, but the step is {step}"
        )
    if len(message.data) != count * step:
        raise SkylaneError(
            f"{message.width}×{message.height} in {encoding!r} with a step of {step} takes "
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
