"""The pictures that are to be sent: found, and looked through before the first of them leaves."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.errors import SkylaneError
from shared.imaging.image_files import ImageFileError, read_image_file

_SUFFIXES = (".jpg", ".jpeg", ".png")


class NoPicturesError(SkylaneError):
    """There is nothing to send."""


class Sorted(NamedTuple):
    """Whole pictures, and what is wrong with the others."""

    whole: tuple[Path, ...]
    corrupt: tuple[ImageFileError, ...]


def found(paths: Iterable[Path]) -> list[Path]:
    """The files that are named, and those of the folders that are, by their suffix and in the order of their names.

    Raises:
        NoPicturesError: there are none.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.rglob("*") if each.suffix.lower() in _SUFFIXES and each.is_file())
        files += inside if path.is_dir() else [path]
    if not files:
        raise NoPicturesError(
            f"no picture is named, nor in a folder that is: give files, or folders of {', '.join(_SUFFIXES)}"
        )
    return list(dict.fromkeys(files))


def sort_out(files: Sequence[Path], on_looked: Callable[[], None]) -> Sorted:
    """Decode every picture once, whole: a header alone tells nothing of a transfer that broke off."""
    whole, corrupt = [], []
    for file in files:
        try:
            read_image_file(file)
            whole.append(file)
        except ImageFileError as error:
            corrupt.append(error)
        on_looked()
    return Sorted(tuple(whole), tuple(corrupt))
