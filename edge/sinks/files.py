"""Files of sinks: written whole, or told why not."""

from pathlib import Path
from typing import Any

from edge.sinks.sink import SinkError
from shared.errors import unwritable_message
from shared.imaging.opencv import cv2


def write_file(path: Path, data: bytes) -> None:
    """Write a file; its folder is made.

    Raises:
        SinkError: the disk does not take it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise unwritable(path, error) from error


def write_picture(path: Path, picture: Any, *parameters: int) -> None:
    """Write a picture in the format that its name ends in: H×W as it is, or H×W×3, RGB, uint8.

    `parameters`: OpenCV's, as `cv2.imencode` takes them.

    Raises:
        SinkError: the disk does not take it.
    """
    stored = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture  # noqa: PLR2004  H, W, C.
    taken, data = cv2.imencode(path.suffix, stored, parameters)
    assert taken
    write_file(path, data.tobytes())


def unwritable(path: Path, error: Exception) -> SinkError:
    """The error for a file that cannot be written."""
    if isinstance(error, OSError):
        return SinkError(unwritable_message(path, error, "--out"))
    return SinkError(f"{path} cannot be written: {error}")
