"""The door to OpenCV: `from shared.imaging.opencv import cv2`, so that its pixel limit is set before it is loaded.

OpenCV reads the limit once, when its library is loaded. It is a net under our own check of every picture's header
(`shared.imaging.image_header`), for whatever else hands OpenCV a file. A limit that the user has set stands.
"""

import os

MAX_SIDE = 65535  # Pixels; two bytes, as in JPEG.
MAX_PIXELS = 1 << 26  # 67 million: above any camera of today, and 0.2 GB as colour.

os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))

import cv2  # noqa: E402  The limit above must come first.

__all__ = ["MAX_PIXELS", "MAX_SIDE", "cv2"]
