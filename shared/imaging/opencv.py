"""Imports OpenCV with a pixel limit. Use `from shared.imaging.opencv import cv2` instead of `import cv2`.

OpenCV reads the limit from the environment once, when it is imported. It complements the header check of
`shared.imaging.image_header` for files that other code passes to OpenCV. A limit already in the environment is kept.
"""

import os

MAX_SIDE = 65535  # Pixels; as in JPEG.
MAX_PIXELS = 1 << 26  # 67 million: more than any current camera has, and 0.2 GB in colour.

os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))

import cv2  # noqa: E402  The limit above must come first.

__all__ = ["MAX_PIXELS", "MAX_SIDE", "cv2"]
