"""Writes the files of sinks, and turns failures into sink errors."""

from pathlib import Path
from typing import Any

from edge.sinks.sink import SinkError
from shared.errors import unwritable_message
from shared.imaging.opencv import cv2


def write_file(path: Path, data: bytes) -> None:
    """Writes a file and creates its folder.

    Raises:
        SinkError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise write_error(path, error) from error


def write_image(path: Path, image: Any, *parameters: int) -> None:
    """Writes an image in the format of the file name's suffix.

    Args:
        path: Name of the file.
        image: H×W, or H×W×3 uint8 in RGB order.
        parameters: Parameters of `cv2.imencode`.

    Raises:
        SinkError: the file cannot be written.
    """
    stored = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if image.ndim == 3 else image  # noqa: PLR2004 (H×W×3)
    is_encoded, data = cv2.imencode(path.suffix, stored, parameters)
    assert is_encoded
    write_file(path, data.tobytes())


def write_error(path: Path, error: Exception) -> SinkError:
    """Returns the sink error for a file that cannot be written."""
    if isinstance(error, OSError):
        return SinkError(unwritable_message(path, error, "--out"))
    return SinkError(f"{path} cannot be written: {error}")
