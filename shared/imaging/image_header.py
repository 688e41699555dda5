"""What a JPEG or PNG says of itself, read by hand and before any decoder takes memory for it."""

import struct
from dataclasses import dataclass

import numpy as np

from shared.encoding.compression import Buffer
from shared.errors import SkylaneError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_SIGNATURE = b"\xff\xd8\xff"

MAX_SEGMENTS = 1000  # Before the frame header; a camera writes fewer than twenty.
MAX_FILL_BYTES = 4096  # Bytes that stand for nothing; sixty megabytes of them take a quarter of a minute to pass over.
MAX_CHUNKS = 1 << 15  # Of a PNG; encoders put eight kilobytes and more into each.
MAX_COMPRESSED_CHUNKS = 4  # Profiles and texts: each may unfold to eight megabytes, and takes a tenth of a second.
MAX_SCANS = 64  # Each costs a pass over the whole picture; encoders write at most a dozen.

_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # By colour type; a palette (3) decodes to colour.
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_HEADER = struct.Struct(">8sI4sIIBB")
_PNG_CHUNK = struct.Struct(">I4s")
_PNG_CHUNK_FRAME = 12  # Bytes of a chunk beside its data: length, type and checksum.
_COMPRESSED_CHUNKS = (b"iCCP", b"zTXt", b"iTXt")
_ANIMATION_CHUNKS = (b"acTL", b"fcTL", b"fdAT")

_PROGRESSIVE = 0xC2
_START_OF_FRAME = (0xC0, 0xC1, _PROGRESSIVE)  # Baseline, extended, progressive: what OpenCV decodes.
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)  # Lossless, hierarchical, arithmetic.
_TABLES = (0xC4, 0xDB, 0xDD)  # Huffman's, quantisation's, how often a decoder starts anew.
_NOTES = (*range(0xE0, 0xF0), 0xFE)  # What programs and people write beside the picture.
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
_LOOKED_AT = 1 << 16  # Bytes at a time: what NumPy makes of more is fetched from the kernel anew each time.
_SCAN_HEADER = struct.Struct(">BBHB")  # Of any segment the marker and length; of a scan, how many components it holds.
_FRAME_HEADER = struct.Struct(">BHHB")  # Bits a sample, height, width, components.


class ImageHeaderError(SkylaneError):
    """Bytes that are no JPEG or PNG, or one of a kind that is not decoded here."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The size of an encoded picture in pixels, its channels (alpha included) and the bits of each."""

    kind: str  # "jpeg" or "png".
    height: int
    width: int
    channels: int
    bits: int


def read_header(data: Buffer) -> ImageHeader:
    """Read the header of a JPEG or PNG, whichever it is.

    Raises:
        ImageHeaderError: it is neither, is cut off, or is of a kind that is not decoded here.
    """
    begins = bytes(data[: len(PNG_SIGNATURE)])
    if begins.startswith(JPEG_SIGNATURE):
        return _jpeg_header(data)
    if begins == PNG_SIGNATURE:
        return _png_header(data)
    raise ImageHeaderError(f"picture starts with {begins.hex(' ') or 'nothing'}: send a JPEG or a PNG")


def _png_header(data: Buffer) -> ImageHeader:
    if len(data) < _PNG_HEADER.size:
        raise ImageHeaderError(f"PNG ends after {len(data)} bytes, inside its header: send it whole")
    _, length, chunk, width, height, bits, colour_type = _PNG_HEADER.unpack_from(data)
    if chunk != b"IHDR" or length != 13:  # noqa: PLR2004  The format's fixed length of IHDR.
        raise ImageHeaderError("PNG does not start with its IHDR chunk: it is damaged, encode it again")
    if bits not in _PNG_DEPTHS.get(colour_type, ()) or not width or not height:
        raise ImageHeaderError(
            f"PNG header says {height}×{width}, {bits} bits, colour type {colour_type}: no PNG can, encode it again"
        )
    _check_chunks(data)
    return ImageHeader("png", height, width, _PNG_CHANNELS[colour_type], max(8, bits))


def _check_chunks(data: Buffer) -> None:
    """Every chunk ends within the data: OpenCV takes memory for as many bytes as one says, up to four gigabytes."""
    at = len(PNG_SIGNATURE)
    compressed = 0
    for _ in range(MAX_CHUNKS):
        if len(data) < at + _PNG_CHUNK_FRAME:
            raise ImageHeaderError(
                f"PNG is damaged or truncated: it ends after {len(data)} bytes, before its last chunk"
            )
        length, kind = _PNG_CHUNK.unpack_from(data, at)
        if at + _PNG_CHUNK_FRAME + length > len(data):
            left = len(data) - at - _PNG_CHUNK_FRAME
            raise ImageHeaderError(f"PNG is damaged or truncated: a chunk says {length} bytes where {left} are left")
        if kind == b"IEND":
            return
        if kind in _ANIMATION_CHUNKS:
            raise ImageHeaderError("PNG is animated: send a single picture")
        compressed += kind in _COMPRESSED_CHUNKS
        if compressed > MAX_COMPRESSED_CHUNKS:
            raise ImageHeaderError(f"PNG has more than {MAX_COMPRESSED_CHUNKS} profiles and texts: encode it again")
        at += _PNG_CHUNK_FRAME + length
    raise ImageHeaderError(f"PNG has more than {MAX_CHUNKS} chunks: encode it again")


def _jpeg_header(data: Buffer) -> ImageHeader:
    at = 2
    filled = 0
    for _ in range(MAX_SEGMENTS):
        while data[at : at + 2] == b"\xff\xff":  # The format lets any number of fill bytes precede a marker.
            at += 1
            filled += 1
            if filled > MAX_FILL_BYTES:
                raise ImageHeaderError(
                    f"JPEG has more than {MAX_FILL_BYTES} fill bytes before its frame header: encode it again"
                )
        if len(data) < at + 4:
            raise ImageHeaderError(f"JPEG ends after {len(data)} bytes, before its frame header: send it whole")
        lead, marker, length = struct.unpack_from(">BBH", data, at)
        if lead != 0xFF or length < 2 or marker in (_START_OF_SCAN, _END_OF_IMAGE):  # noqa: PLR2004  As in the format.
            raise ImageHeaderError(f"JPEG has no frame header at byte {at}: it is damaged, encode it again")
        if marker in _START_OF_FRAME:
            header = _jpeg_frame(data, at + 4)
            if marker == _PROGRESSIVE or not _is_one_scan(data, at + 2 + length, header.channels):
                _check_scans(data, at + 4)
            return header
        if marker in _OTHER_FRAMES:
            raise ImageHeaderError(
                f"JPEG is of the kind {marker:#x} (lossless, hierarchical or arithmetic): send baseline or progressive"
            )
        if marker not in (*_TABLES, *_NOTES):  # Some have no length: behind them a decoder reads on at another place.
            raise ImageHeaderError(f"JPEG has a marker {marker:#x} before its frame header: encode it again")
        at += 2 + length
    raise ImageHeaderError(f"JPEG has more than {MAX_SEGMENTS} segments before its frame header: encode it again")


def _jpeg_frame(data: Buffer, at: int) -> ImageHeader:
    if len(data) < at + _FRAME_HEADER.size:
        raise ImageHeaderError(f"JPEG ends after {len(data)} bytes, inside its frame header: send it whole")
    bits, height, width, components = _FRAME_HEADER.unpack_from(data, at)
    if bits != 8 or not height or not width or components not in (1, 3, 4):  # noqa: PLR2004  What the format gives.
        raise ImageHeaderError(
            f"JPEG says {height}×{width}, {bits} bits, {components} components: send 8 bits and 1 or 3 components"
        )
    return ImageHeader("jpeg", height, width, components, bits)


def _is_one_scan(data: Buffer, at: int, components: int) -> bool:
    """Whether the first scan, from the segment at `at` on, holds all components: then no decoder looks for a second."""
    for _ in range(MAX_SEGMENTS):
        if len(data) < at + _SCAN_HEADER.size:
            return False
        lead, marker, length, scanned = _SCAN_HEADER.unpack_from(data, at)
        if lead != 0xFF or length < 2 or marker not in (*_TABLES, *_NOTES, _START_OF_SCAN):  # noqa: PLR2004  As in the format.
            return False
        if marker == _START_OF_SCAN:
            return bool(scanned == components)
        at += 2 + length
    return False


def _check_scans(data: Buffer, at: int) -> None:
    scans = _scans(data, at)
    if scans > MAX_SCANS:
        raise ImageHeaderError(f"JPEG has {scans} scans, more than {MAX_SCANS}: encode it again")


def _scans(data: Buffer, at: int) -> int:
    """How many scans begin from `at` on; NumPy finds the two bytes in a tenth of the time that `bytes.count` takes."""
    count = 0
    for begin in range(at, len(data) - 1, _LOOKED_AT):
        part = np.frombuffer(data, np.uint8, min(_LOOKED_AT + 1, len(data) - begin), begin)
        count += int(np.count_nonzero((part[:-1] == 0xFF) & (part[1:] == _START_OF_SCAN)))  # noqa: PLR2004  As in the format.
    return count
