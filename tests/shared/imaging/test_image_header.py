import zlib

import numpy as np
import pytest

from shared.imaging.image_header import (
    MAX_CHUNKS,
    MAX_FILL_BYTES,
    MAX_SCANS,
    MAX_SEGMENTS,
    ImageHeader,
    ImageHeaderError,
    read_header,
)
from shared.imaging.opencv import cv2


def encoded_image(
    suffix: str, shape: tuple[int, ...], dtype: type = np.uint8, parameters: tuple[int, ...] = ()
) -> bytes:
    """Returns an encoded image of zeros."""
    done, data = cv2.imencode(suffix, np.zeros(shape, dtype), parameters)
    assert done
    return bytes(data.tobytes())


PROGRESSIVE = (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (encoded_image(".jpg", (12, 34, 3)), ImageHeader("jpeg", 12, 34, 3, 8)),
        (encoded_image(".jpg", (12, 34)), ImageHeader("jpeg", 12, 34, 1, 8)),
        (encoded_image(".jpg", (12, 34, 3), parameters=PROGRESSIVE), ImageHeader("jpeg", 12, 34, 3, 8)),
        (encoded_image(".png", (12, 34, 3)), ImageHeader("png", 12, 34, 3, 8)),
        (encoded_image(".png", (12, 34, 4)), ImageHeader("png", 12, 34, 4, 8)),
        (encoded_image(".png", (12, 34)), ImageHeader("png", 12, 34, 1, 8)),
        (encoded_image(".png", (12, 34), np.uint16), ImageHeader("png", 12, 34, 1, 16)),
    ],
)
def test_header_matches_the_encoded_image(data: bytes, header: ImageHeader) -> None:
    """Receivers compare it with the expected shape."""
    assert read_header(data) == header


def test_metadata_before_the_frame_header_is_skipped() -> None:
    """An EXIF thumbnail is a JPEG too; its size must not be taken for the image's."""
    jpeg = encoded_image(".jpg", (12, 34, 3))
    thumbnail = encoded_image(".jpg", (4, 5, 3))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    fill = b"\xff\xff\xff"
    assert read_header(jpeg[:2] + segment + fill + jpeg[2:]) == ImageHeader("jpeg", 12, 34, 3, 8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"GIF89a\x01\x00\x01\x00", "starts with 47 49 46"),
        (encoded_image(".png", (5, 5))[:20], "PNG ends after 20 bytes"),
        (encoded_image(".png", (5, 5)).replace(b"IHDR", b"IDAT"), "IHDR"),
        (encoded_image(".png", (5, 5)).replace((5).to_bytes(4, "big"), bytes(4)), "0×0"),
        (encoded_image(".jpg", (5, 5))[:9], "JPEG ends after 9 bytes"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00", "inside its frame header"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x0c\x00\x05\x00\x05\x01", "12 bits"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x05\x00\x00\x01", "5×0"),
        (b"\xff\xd8\xff\xc3\x00\x0b\x08\x00\x05\x00\x05\x01", "0xc3"),
        (b"\xff\xd8\xff\xda\x00\x0b\x08\x00\x05\x00\x05\x01", "no frame header"),
        (b"\xff\xd8\xff\xe0\x00\x00\x08\x00\x05\x00\x05\x01", "no frame header"),
        (b"\xff\xd8" + b"\xff\xe0\x00\x02" * (MAX_SEGMENTS + 1), "segments"),
        (b"\xff\xd8" + b"\xff" * (MAX_FILL_BYTES + 2) + b"\xc0\x00\x0b\x08\x00\x01\x00\x01\x01", "fill bytes"),
    ],
)
def test_invalid_file_is_rejected_with_a_reason(data: bytes, reason: str) -> None:
    """Each case would make a decoder use time or memory for nothing."""
    with pytest.raises(ImageHeaderError, match=reason):
        read_header(data)


def test_progressive_jpeg_with_many_scans_is_rejected() -> None:
    """Each scan of a few bytes costs a pass over millions of pixels."""
    jpeg = encoded_image(".jpg", (12, 34, 3), parameters=PROGRESSIVE)
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    with pytest.raises(ImageHeaderError, match="scans"):
        read_header(jpeg[:-2] + scan * MAX_SCANS + jpeg[-2:])


def test_scans_after_a_complete_one_are_not_counted() -> None:
    """A decoder ignores them, and counting them takes a tenth of the time of decoding a small image."""
    jpeg = cv2.imencode(".jpg", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    many = jpeg[:-2] + scan * MAX_SCANS + jpeg[-2:]
    assert read_header(many) == read_header(memoryview(jpeg))
    assert not np.any(cv2.imdecode(np.frombuffer(many, np.uint8), cv2.IMREAD_COLOR))


def test_baseline_jpeg_with_many_scans_is_rejected() -> None:
    """If the first scan has one of three components, a decoder processes the following ones too."""
    jpeg = cv2.imencode(".jpg", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    at = jpeg.rindex(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01" + jpeg[at + 5 : at + 7] + jpeg[at + 11 : -2]
    with pytest.raises(ImageHeaderError, match="65 scans"):
        read_header(jpeg[:at] + scan * (MAX_SCANS + 1) + jpeg[-2:])


@pytest.mark.parametrize(
    "before", [b"\xff\xd0", b"\xff\xd7", b"\xff\x01", b"\xff"], ids=["rst0", "rst7", "tem", "fill"]
)
def test_scans_hidden_after_markers_without_length_are_counted(before: bytes) -> None:
    """A decoder reads on right after such a marker."""
    jpeg = cv2.imencode(".jpg", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    at = jpeg.rindex(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01" + jpeg[at + 5 : at + 7] + jpeg[at + 11 : -2]
    hidden = before + scan * (MAX_SCANS + 1)
    whole = jpeg[:at] + hidden + bytes(0xFFDA - len(hidden) + 2) + jpeg[at:]
    with pytest.raises(ImageHeaderError, match="scans, more than 64"):
        read_header(whole)


@pytest.mark.parametrize("marker", [b"\xff\xd0", b"\xff\xd8", b"\xff\x01", b"\xff\x00"])
def test_size_hidden_after_markers_without_length_is_rejected(marker: bytes) -> None:
    """A decoder would find the hidden size and allocate memory for it."""
    small, large = (cv2.imencode(".jpg", np.zeros((side, side, 3), np.uint8))[1].tobytes() for side in (16, 2000))
    skipped = marker + b"\xff\xe0" + large[2:][: 0xFFE0 - 2]
    with pytest.raises(ImageHeaderError, match=r"has a marker 0x|no frame header"):
        read_header(small[:2] + skipped + bytes(0xFFE0 + 2 - len(skipped)) + small[2:])


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _insert(png: bytes, chunks: bytes) -> bytes:
    """Returns a PNG with chunks inserted after its header."""
    return png[:33] + chunks + png[33:]


PNG = encoded_image(".png", (12, 34))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_insert(PNG, b"\xff\xfe\x00\x30IDAT" + bytes(48)), "4294836272 bytes and"),
        (_insert(PNG, b"\x7f\xff\xff\xfftEXt" + bytes(48)), "2147483647 bytes and"),
        (
            _insert(PNG, _chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 20))) * 5),
            "more than 4 compressed profiles and texts",
        ),
        (_insert(PNG, _chunk(b"tEXt") * (MAX_CHUNKS + 1)), "more than 32768 chunks"),
        (_insert(PNG, _chunk(b"acTL", bytes(8))), "animated"),
        (PNG[:-12], "before its last chunk"),
    ],
)
def test_png_with_invalid_chunks_is_rejected(data: bytes, reason: str) -> None:
    """OpenCV took 4.2 GB and half a minute for a PNG of a hundred bytes; fuzzing found it."""
    with pytest.raises(ImageHeaderError, match=reason):
        read_header(data)


def test_ancillary_chunks_are_skipped() -> None:
    """Image editors write them."""
    text = _chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a text"))
    assert read_header(_insert(PNG, _chunk(b"gAMA", bytes(4)) + text + _chunk(b"iTXt"))) == read_header(PNG)
    assert read_header(PNG + b"what follows its end") == read_header(PNG)
