"""Finds the recordings of a library, a folder of any depth, and lists its other content.

A recording is a bag, a video file or a folder of images; all of them are called bags here.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edge.sources.folder import named_lists, no_camera
from edge.sources.source import IMAGE_SUFFIXES, SOURCES, kind_of, open_source
from rosbag_tools.reading.bag import Bag, is_copy
from shared.errors import SkylaneError
from shared.files import natural_path_key, resolved
from shared.sanitize import printable

_BAG_SUFFIXES = (".bag", ".mcap", ".db3", ".mcap.zstd", ".db3.zstd")
_DATA_SUFFIXES = _BAG_SUFFIXES[1:]  # Files inside the folder of a ROS 2 bag.
_VIDEO_SUFFIXES = SOURCES["video"].suffixes
_METADATA = "metadata.yaml"
_END_BYTES = 1 << 16


class LibraryError(SkylaneError):
    """A library cannot be read, or a bag of it cannot be used."""


@dataclass(frozen=True, slots=True)
class LibraryBag:
    """A bag of a library, as it was when the library was scanned."""

    name: str  # Path relative to the library, with "/".
    path: Path
    size_bytes: int  # Total size of its files.
    mtime_ns: int  # Latest time of change of its files.

    def check_unchanged(self) -> None:
        """Raises a LibraryError if the bag has changed since the scan."""
        if (self.size_bytes, self.mtime_ns) != _size_and_time(self.path):
            raise LibraryError(f"{self.path} changed while it was read: run the batch again when it is complete")


@dataclass(frozen=True, slots=True)
class Library:
    """The content of a library, bags in the natural order of their names."""

    bags: tuple[LibraryBag, ...]
    refused: dict[str, str]  # Reasons by name: links that lead out of the library, unreadable folders and files.
    ignored: tuple[str, ...]  # Names of files and folders that are no recordings.


def scan(folder: Path, out: Path) -> Library:
    """Lists the recordings below a folder without opening them; `out`, the folder of the results, is left out.

    A folder with a metadata.yaml is a bag, as is a .bag, .mcap or .db3 file; a video file is a recording, and so is a folder that
    directly has images, unless its name says that they are labels or distances. A recording can also be given by itself. Links are
    not followed: what they lead to inside the library is found at its own place.

    Raises:
        LibraryError: the folder cannot be read, has no recording below it, or is the one for the results.
    """
    if not os.path.exists(folder):  # noqa: PTH110  Also for names that are too long.
        raise LibraryError(f"{folder} does not exist: give a recording or a folder of them; record a live camera first")
    if resolved(folder).is_relative_to(resolved(out) / "bags") or resolved(folder) == resolved(out):
        raise LibraryError(f"the results in {out} would be part of the library {folder}: choose another --out")
    if not (folder.is_file() or folder.is_dir()):
        raise LibraryError(f"{folder} is no file and no folder: give a recording or a folder of them")
    findings = _Findings(resolved(folder), resolved(out))
    if folder.is_file() or (folder / _METADATA).is_file():
        findings.take(folder)
    else:
        findings.walk(folder)
        if findings.bags and all(_is_image_folder(bag.path) for bag in findings.bags) and _has_images(folder):
            raise LibraryError(
                f"{folder} has images of its own beside folders of images: give one of the folders, or move its images into a "
                "folder of their own"
            )
        if not findings.bags and not findings.refused and _has_images(folder):
            findings = _Findings(resolved(folder), resolved(out))
            findings.take(folder)
    if not findings.bags and not findings.refused:
        raise LibraryError(
            f"{folder} contains no recording: give bags (.bag, .mcap, .db3, or folders of ROS 2), video files or folders of images"
        )
    return Library(
        tuple(sorted(findings.bags, key=lambda bag: natural_path_key(PurePosixPath(bag.name)))),
        dict(sorted(findings.refused.items())),
        tuple(sorted(findings.ignored)),
    )


def content_hash(path: Path) -> str:
    """Returns the SHA-256 of a recording, for a bag the one that `skylane bag info` shows. Reads all its files.

    Raises:
        SkylaneError: it is no recording, or cannot be read.
    """
    if kind_of(str(path)) == "bag":
        with Bag(path) as bag:
            return bag.sha256
    with closing(open_source(str(path))) as source:
        return str(source.provenance["sha256"])


def ends_hash(path: Path) -> str:
    """Returns a hash of the first and last bytes of a bag's files, equal for copies; empty if a file is unreadable."""
    digest = hashlib.sha256()
    try:
        for part in sorted(_files(path)):
            with part.open("rb") as file:
                digest.update(file.read(_END_BYTES))
                file.seek(max(0, part.stat().st_size - _END_BYTES))
                digest.update(file.read(_END_BYTES))
    except OSError:
        return ""
    return digest.hexdigest()


class _Findings:
    """Collects the content of one library."""

    def __init__(self, root: Path, out: Path) -> None:
        self.bags: list[LibraryBag] = []
        self.refused: dict[str, str] = {}
        self.ignored: list[str] = []
        self._root = root
        self._out = out
        self._top = Path()

    def take(self, path: Path) -> None:
        """Adds one recording."""
        self._top = path.absolute().parent
        self._bag(path.absolute())

    def walk(self, top: Path) -> None:
        """Lists everything below `top`; without recursion, because folders can be nested deeply."""
        self._top = top
        folders = [top]
        while folders:
            folders += self._subfolders(folders.pop())

    def _subfolders(self, folder: Path) -> list[Path]:
        """Adds the content of a folder and returns its subfolders; a folder that is a bag is added as a whole."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            if folder == self._top:
                raise LibraryError(f"{folder} cannot be read ({error.strerror}): give a readable folder") from error
            self._refuse(folder, f"cannot be read: {error.strerror}")
            return []
        if folder != self._top and any(entry.name == _METADATA for entry in entries):
            self._bag_folder(folder, entries)
            return []
        files = [entry.name.lower() for entry in entries if entry.is_file(follow_symlinks=False)]
        has_images = any(name.endswith(IMAGE_SUFFIXES) for name in files)
        has_recordings = any(name.endswith((*_BAG_SUFFIXES, *_VIDEO_SUFFIXES)) for name in files)
        if folder != self._top and has_images and not has_recordings:  # Pictures beside recordings are no camera.
            if no_camera(self._name(folder)):
                self.ignored.append(self._name(folder))
            else:
                self._bag(folder)
            entries = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        folders = []
        names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink():
                self._link(path)
            elif entry.is_dir():
                folders.append(path)
            elif (entry.name.lower().endswith(_VIDEO_SUFFIXES) and entry.is_file()) or (
                entry.name.endswith(_BAG_SUFFIXES) and entry.is_file() and not is_copy(entry.name, names)
            ):
                self._bag(path)
            else:
                self.ignored.append(self._name(path))
        return [each for each in folders if resolved(each) != self._out]

    def _bag_folder(self, folder: Path, entries: list[os.DirEntry[str]]) -> None:
        for entry in entries:
            if entry.is_symlink() and not resolved(Path(entry.path)).is_relative_to(self._root):
                self._refuse(folder, f"its file {entry.name} is a link that leads out of the library: copy the file")
                return
        self._bag(folder)

    def _link(self, path: Path) -> None:
        target = resolved(path)
        if not target.is_relative_to(self._root):
            self._refuse(
                path, f"is a link that leads out of the library, to {target}: copy the bag, or give its folder"
            )
        elif not target.exists():
            self._refuse(path, "is a link to nothing: remove it")
        else:
            self.ignored.append(self._name(path))

    def _bag(self, path: Path) -> None:
        if self._name(path) != path.relative_to(self._top).as_posix():
            self._refuse(path, "its name is not valid UTF-8 or has control characters: rename it")
            return
        try:
            self.bags.append(LibraryBag(self._name(path), path, *_size_and_time(path)))
        except OSError as error:
            self._refuse(path, f"cannot be read: {error.strerror}")

    def _refuse(self, path: Path, reason: str) -> None:
        self.refused[self._name(path)] = reason

    def _name(self, path: Path) -> str:
        """Returns the path below the library, printable."""
        name = path.relative_to(self._top).as_posix()
        return printable(name.encode("utf-8", "backslashreplace").decode())


def _size_and_time(path: Path) -> tuple[int, int]:
    """Returns the total size and the latest time of change of a bag's files."""
    states = [file.stat() for file in _files(path)]
    return sum(state.st_size for state in states), max((state.st_mtime_ns for state in states), default=0)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    is_images = _is_image_folder(path)
    names = IMAGE_SUFFIXES if is_images else (_METADATA, *_DATA_SUFFIXES)
    yield from named_lists(path) if is_images else ()
    yield from (file for file in path.iterdir() if file.name.lower().endswith(names) and file.is_file())


def _is_image_folder(path: Path) -> bool:
    return path.is_dir() and not (path / _METADATA).is_file()


def _has_images(folder: Path) -> bool:
    return any(file.name.lower().endswith(IMAGE_SUFFIXES) for file in folder.iterdir())
