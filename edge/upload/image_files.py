"""Finds the image files to upload, and checks them before the first one is sent."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from shared.errors import SkylaneError
from shared.imaging.image_files import ImageFileError, read_image_file
from shared.natural_order import natural_path_key

_SUFFIXES = (".jpg", ".jpeg", ".png")


class NothingToUploadError(SkylaneError):
    """There are no images to upload."""


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Returns files as given, and the image files in folders and their subfolders, in the natural order of their names.

    Raises:
        NothingToUploadError: there are none.
    """
    files: list[Path] = []
    for path in paths:
        inside = (each for each in path.rglob("*") if each.suffix.lower() in _SUFFIXES and each.is_file())
        files += sorted(inside, key=natural_path_key) if path.is_dir() else [path]
    if not files:
        raise NothingToUploadError(f"no images found: give files, or folders that contain {', '.join(_SUFFIXES)} files")
    return list(dict.fromkeys(files))


def check_images(files: Sequence[Path], on_checked: Callable[[], None]) -> tuple[list[Path], list[ImageFileError]]:
    """Returns the valid image files, and the errors of the others.

    It decodes each image completely: a header does not reveal that a file was cut off.

    Raises:
        NothingToUploadError: no file is valid.
    """
    valid, corrupt = [], []
    for file in files:
        try:
            read_image_file(file)
            valid.append(file)
        except ImageFileError as error:
            corrupt.append(error)
        on_checked()
    if not valid:
        others = f" (and {len(corrupt) - 1} more)" if len(corrupt) > 1 else ""
        raise NothingToUploadError(f"no image to send: {corrupt[0]}{others}")
    return valid, corrupt
