import os
import struct
import subprocess
import sys
import zlib

from shared.imaging.opencv import MAX_PIXELS

DECODE = "import sys; from shared.imaging.opencv import cv2; import numpy as np; data = np.frombuffer(sys.stdin.buffer.read(), 'u1')\n"
REPORT = "try: print(cv2.imdecode(data, -1) is None)\nexcept cv2.error as error: print('PIXELS' in str(error))"


def chunk(kind: bytes, body: bytes) -> bytes:
    """Returns a PNG chunk with its length and checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_opencv_rejects_images_above_the_pixel_limit() -> None:
    """The limit applies in a new process that imports OpenCV from our module."""
    side = 12_000
    assert side * side > MAX_PIXELS
    rows = zlib.compress(bytes((side // 8 + 1) * side))
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    environment = {name: value for name, value in os.environ.items() if name != "OPENCV_IO_MAX_IMAGE_PIXELS"}
    done = subprocess.run(
        [sys.executable, "-c", DECODE + REPORT], input=bomb, capture_output=True, check=True, env=environment
    )
    assert done.stdout.strip() == b"True"
