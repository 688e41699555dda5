import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def picture(suffix: str, shape: tuple[int, ...], dtype: type = np.uint8, parameters: tuple[int, ...] = ()) -> bytes:
    """An encoded picture of zeros."""
    done, data = cv2.imencode(suffix, np.zeros(shape, dtype), parameters)
    assert done
    return bytes(data.tobytes())


PROGRESSIVE = (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (picture(".jpg", (12, 34, 3)), ImageHeader("jpeg", 12, 34, 3, 8)),
        (picture(".jpg", (12, 34)), ImageHeader("jpeg", 12, 34, 1, 8)),
        (picture(".jpg", (12, 34, 3), parameters=PROGRESSIVE), ImageHeader("jpeg", 12, 34, 3, 8)),
        (picture(".png", (12, 34, 3)), ImageHeader("png", 12, 34, 3, 8)),
        (picture(".png", (12, 34, 4)), ImageHeader("png", 12, 34, 4, 8)),
        (picture(".png", (12, 34)), ImageHeader("png", 12, 34, 1, 8)),
        (picture(".png", (12, 34), np.uint16), ImageHeader("png", 12, 34, 1, 16)),
    ],
)
def test_the_header_tells_what_was_encoded(data: bytes, header: ImageHeader) -> None:
    """What it tells is compared with what was announced, before memory is taken."""
    assert read_header(data) == header


def test_metadata_before_the_frame_header_is_walked_over() -> None:
    """Cameras write EXIF with a thumbnail, a JPEG of its own whose size must not be taken for the picture's."""
    jpeg = picture(".jpg", (12, 34, 3))
    thumbnail = picture(".jpg", (4, 5, 3))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    fill = b"\xff\xff\xff"
    assert read_header(jpeg[:2] + segment + fill + jpeg[2:]) == ImageHeader("jpeg", 12, 34, 3, 8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "starts with nothing"),
        (b"GIF89a\x01\x00\x01\x00", "starts with 47 49 46"),
        (picture(".png", (5, 5))[:20], "PNG ends after 20 bytes"),
        (picture(".png", (5, 5)).replace(b"IHDR", b"IDAT"), "IHDR"),
        (picture(".png", (5, 5)).replace((5).to_bytes(4, "big"), bytes(4)), "0×0"),
        (picture(".jpg", (5, 5))[:9], "JPEG ends after 9 bytes"),
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
def test_what_is_no_picture_of_ours_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    """Each is a way to make a decoder run or allocate for nothing."""
    with pytest.raises(ImageHeaderError, match=reason):
        read_header(data)


def test_a_progressive_scan_bomb_is_refused() -> None:
    """A few bytes a scan make a decoder pass over millions of pixels each time."""
    jpeg = picture(".jpg", (12, 34, 3), parameters=PROGRESSIVE)
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    with pytest.raises(ImageHeaderError, match="scans"):
        read_header(jpeg[:-2] + scan * MAX_SCANS + jpeg[-2:])


def test_scans_behind_one_that_holds_all_components_are_nobodys_work() -> None:
    """A decoder stops behind it; to count the others takes a tenth of the time that decoding a small picture takes."""
    jpeg = cv2.imencode(".jpg", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    many = jpeg[:-2] + scan * MAX_SCANS + jpeg[-2:]
    assert read_header(many) == read_header(memoryview(jpeg))
    assert not np.any(cv2.imdecode(np.frombuffer(many, np.uint8), cv2.IMREAD_COLOR))


def test_a_baseline_picture_in_many_scans_is_refused() -> None:
    """Where the first scan holds one colour of three, a decoder passes over the picture for each that follows."""
    jpeg = cv2.imencode(".jpg", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    at = jpeg.rindex(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01" + jpeg[at + 5 : at + 7] + jpeg[at + 11 : -2]
    with pytest.raises(ImageHeaderError, match="65 scans"):
        read_header(jpeg[:at] + scan * (MAX_SCANS + 1) + jpeg[-2:])


@pytest.mark.parametrize(
    "before", [b"\xff\xd0", b"\xff\xd7", b"\xff\x01", b"\xff"], ids=["rst0", "rst7", "tem", "fill"]
)
def test_scans_hidden_behind_what_has_no_length_are_counted(before: bytes) -> None:
    """To a decoder the next marker follows at once; whoever takes its bytes for a length looks elsewhere."""
    jpeg = cv2.imencode(".jpg", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    at = jpeg.rindex(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01" + jpeg[at + 5 : at + 7] + jpeg[at + 11 : -2]
    hidden = before + scan * (MAX_SCANS + 1)
    whole = jpeg[:at] + hidden + bytes(0xFFDA - len(hidden) + 2) + jpeg[at:]
    with pytest.raises(ImageHeaderError, match="scans, more than 64"):
        read_header(whole)


@pytest.mark.parametrize("marker", [b"\xff\xd0", b"\xff\xd8", b"\xff\x01", b"\xff\x00"])
def test_a_size_hidden_behind_what_has_no_length_is_not_passed_over(marker: bytes) -> None:
    """A decoder finds it, and takes memory for that one."""
    small, large = (cv2.imencode(".jpg", np.zeros((side, side, 3), np.uint8))[1].tobytes() for side in (16, 2000))
    skipped = marker + b"\xff\xe0" + large[2:][: 0xFFE0 - 2]
    with pytest.raises(ImageHeaderError, match=r"has a marker 0x|no frame header"):
        read_header(small[:2] + skipped + bytes(0xFFE0 + 2 - len(skipped)) + small[2:])


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _with(png: bytes, chunks: bytes) -> bytes:
    """A PNG with more chunks behind its header."""
    return png[:33] + chunks + png[33:]


PNG = picture(".png", (12, 34))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_with(PNG, b"\xff\xfe\x00\x30IDAT" + bytes(48)), "4294836272 bytes where"),
        (_with(PNG, b"\x7f\xff\xff\xfftEXt" + bytes(48)), "2147483647 bytes where"),
        (_with(PNG, _chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 20))) * 5), "more than 4 profiles and texts"),
        (_with(PNG, _chunk(b"tEXt") * (MAX_CHUNKS + 1)), "more than 32768 chunks"),
        (_with(PNG, _chunk(b"acTL", bytes(8))), "animated"),
        (PNG[:-12], "before its last chunk"),
    ],
)
def test_a_chunk_that_is_not_there_is_refused_before_memory_is_taken_for_it(data: bytes, reason: str) -> None:
    """OpenCV took 4.2 GB and half a minute for a PNG of a hundred bytes: fuzzing found it."""
    with pytest.raises(ImageHeaderError, match=reason):
        read_header(data)


def test_a_profile_and_a_text_are_walked_over() -> None:
    """Pictures that people edited have them."""
    text = _chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a text"))
    assert read_header(_with(PNG, _chunk(b"gAMA", bytes(4)) + text + _chunk(b"iTXt"))) == read_header(PNG)
    assert read_header(PNG + b"what follows its end") == read_header(PNG)


@given(data=st.binary(max_size=80), lead=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"]))
def test_any_bytes_are_read_or_refused(data: bytes, lead: bytes) -> None:
    """Nothing but our own error may leave a parser of hostile bytes."""
    try:
        header = read_header(lead + data)
    except ImageHeaderError:
        return
    assert min(header.height, header.width) > 0
