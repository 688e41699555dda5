"""Bombs: small frame messages that would decompress to gigabytes or keep a decoder busy for minutes."""

import struct
import zlib
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import lz4.block
import msgpack
import numpy as np
from backports import zstd
from msgspec.structs import asdict, replace

from shared.imaging.geometry import Resize, plan
from shared.imaging.opencv import MAX_SIDE as LONGEST_SIDE
from shared.imaging.opencv import cv2
from shared.messages.frame import pack_frame
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.messages.topics import FrameId
from tests.support.faults.hostile.messages import black_frame

_UNFOLDED = 1 << 28
_SIDE = 8192  # Side of the images with a huge declared size: 67 million pixels, the limit of a geometry.
_LEAST_BYTES = 33  # Signature and header of a PNG.


class Bomb(NamedTuple):
    """A description and the message."""

    name: str
    frame_id: FrameId
    payload: bytes


def bombs(first: FrameId, model: str, height: int, width: int) -> Iterator[Bomb]:
    """Yields messages with `first` and the following ids, for a model of this input size; none may cost memory."""
    ids = (replace(first, sequence=sequence) for sequence in count(first.sequence))
    fields: dict[str, Any] = msgpack.unpackb(pack_frame(black_frame(first, model, height, width)))

    def with_picture(name: str, codec: str, data: bytes, **changes: Any) -> Bomb:
        frame_id = next(ids)
        return Bomb(
            name, frame_id, msgpack.packb(fields | {"id": str(frame_id), "codec": codec, "data": data} | changes)
        )

    small = cv2.imencode(".png", np.zeros((height, width, 3), np.uint8))[1].tobytes()
    huge = {
        "shape": [_SIDE, _SIDE, 3],
        "geometry": asdict(plan(Resize.STRETCH, _SIDE, _SIDE, height, width)),
    }
    zeros = bytes(_UNFOLDED)
    yield with_picture("a PNG of 67 million pixels", "png", _png(_SIDE, _SIDE, zeros), **huge)
    yield with_picture("a PNG larger than announced", "png", _png(_SIDE, _SIDE, zeros))
    yield with_picture("a PNG with a chunk of 4 GB", "png", _with_chunks(small, b"\xff\xff\x00\x00IDAT"))
    texts = b"".join(_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(7_900_000), 9)) for _ in range(100))
    yield with_picture("a PNG with 100 texts of 8 MB", "png", _with_chunks(small, texts))
    yield with_picture("a JPEG of 67 million pixels", "jpeg", _jpeg(_SIDE, _SIDE), **huge)
    yield with_picture("a JPEG of 1,000 scans", "jpeg", _scans(height, width))
    yield with_picture("zstd", "zstd", zstd.compress(zeros))
    yield with_picture("zstd that hides its size", "zstd", _stream(zeros))
    yield with_picture("lz4", "lz4", lz4.block.compress(zeros, store_size=False))
    yield with_picture(
        "a mask of 4 billion pixels",
        "raw",
        bytes(height * width * 3),
        geometry=asdict(plan(Resize.STRETCH, height, width, height, width))
        | {"source_height": LONGEST_SIDE, "source_width": LONGEST_SIDE},
        want={"size": "frame"},
    )
    yield with_picture(
        "a mask of 67 million pixels",
        "raw",
        bytes(height * width * 3),
        geometry=asdict(plan(Resize.STRETCH, _SIDE, _SIDE, height, width)),
        want={"size": "frame"},
    )
    for name, inner in {"maps": b"\x80", "lists": b"\x90", "numbers": b"\xcd\xff\xff", "texts": b"\xa2ab"}.items():
        yield Bomb(f"MessagePack of a million {name}", next(ids), _nested(inner))
    yield Bomb("MessagePack nested 100,000 deep", next(ids), b"\x82\xa1v\x01\xa1x" + b"\x91" * 100_000)
    for name, lead in {"array": b"\xdd", "map": b"\xdf", "bin": b"\xc6", "text": b"\xdb", "ext": b"\xc9"}.items():
        yield Bomb(
            f"MessagePack that says {name} of 4 GB", next(ids), b"\x82\xa1v\x01\xa1x" + lead + b"\xff\xff\xff\xff"
        )
    yield with_picture("250 stamps of 8 KB", "raw", b"", stamps=[["x" * 4000, "y" * 4000, 1]] * 250)
    assert len(zeros) > MAX_MESSAGE_BYTES


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(height: int, width: int, zeros: bytes) -> bytes:
    """Returns a PNG with a declared size and the compressed pixels `zeros`."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(zeros, 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _with_chunks(png: bytes, chunks: bytes) -> bytes:
    return png[:_LEAST_BYTES] + chunks + png[_LEAST_BYTES:]


def _jpeg(height: int, width: int) -> bytes:
    """Returns a JPEG whose header declares another size."""
    jpeg = bytearray(cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes())
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(jpeg)


def _scans(height: int, width: int) -> bytes:
    """Returns a progressive JPEG whose last scan is repeated a thousand times."""
    parameters = (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    jpeg = cv2.imencode(".jpg", np.zeros((height, width, 3), np.uint8), parameters)[1].tobytes()
    return bytes(jpeg[:-2] + jpeg[jpeg.rindex(b"\xff\xda") : -2] * 1000 + jpeg[-2:])


def _stream(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: 0})


def _nested(inner: bytes) -> bytes:
    """Returns about a million `inner` in nested lists, none longer than allowed."""
    row = b"\xdc\x01\x00" + inner * 256
    table = b"\xdc\x01\x00" + row * 256
    return b"\x82\xa1v\x01\xa1x\x9f" + table * 15
