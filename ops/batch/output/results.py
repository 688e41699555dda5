"""Writes the results of one bag in a staging folder, which gets its place and a manifest when it is complete."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ops.batch.executor import BagOutcome
from ops.batch.frames import BagEnd, SegmentedFrame
from ops.batch.library import LibraryBag
from ops.batch.output.mask_formats import MASK_FORMATS, MaskTarget
from ops.batch.output.table import BagTable
from ops.batch.settings import BatchSettings
from shared.config import Section
from shared.errors import SkylaneError, unwritable_message
from shared.files import make_folder, read_file, tree_sha256, write_file
from shared.messages.topics import CameraNames
from shared.models.manifest import SHA256

MANIFEST_NAME = "manifest.json"
TABLE_NAME = "frames.parquet"  # The table of one bag, and of the whole batch.

_Sha256 = Annotated[str, Field(pattern=SHA256)]


def results_folder(out: Path, bag: str) -> Path:
    """Returns the folder of a bag's results."""
    return out / "bags" / bag


def staging_folder(out: Path) -> Path:
    """Returns the folder of unfinished results, which the next run deletes."""
    return out / ".staging"


class ResultWriter:
    """Writes the results of one bag. `finish` completes them; anything else leaves no trace in their place."""

    def __init__(self, bag: LibraryBag, settings: BatchSettings) -> None:
        """Prepares the writer; the first frame opens its files."""
        self._bag = bag
        self._settings = settings
        self._folder = staging_folder(settings.out) / uuid.uuid4().hex
        self._cameras = CameraNames()
        self.frames = 0  # Frames that are written.
        self._files: tuple[MaskTarget, BagTable] | None = None
        self._error = ""
        self._is_blocked = False  # True if writing failed, for which the bag is not the reason.

    @property
    def failed(self) -> bool:
        """True if a frame could not be written; further frames are ignored, and `finish` returns the reason."""
        return bool(self._error)

    def write(self, frame: SegmentedFrame) -> None:
        """Writes a frame; an error is kept for `finish`."""
        if self._error:
            return
        try:
            masks, table = self._open()
            table.add(frame, masks.write(frame))
            camera = self._cameras[frame.camera]  # Also without a picture, so that the names are those of the masks.
            if frame.picture:
                path = self._folder / "pictures" / camera / f"{frame.index:06d}.jpg"
                write_file(path, frame.picture, self._folder)
            self.frames += 1
        except (SkylaneError, OSError) as error:
            self._block(error)

    def fail(self, reason: str) -> None:
        """Makes the bag fail; the first reason counts."""
        self._error = self._error or reason

    def finish(self, end: BagEnd) -> BagOutcome:
        """Completes the results, or discards them if anything failed."""
        self.fail(end.error)
        try:
            if not self._error:
                self._complete(end)
        except (SkylaneError, OSError) as error:
            self._block(error)
        self.discard()
        frames = 0 if self._error else self.frames
        return BagOutcome(
            self._bag.name, frames, end.unreadable, end.first_unreadable, self._error, stops=self._is_blocked
        )

    def discard(self) -> None:
        """Deletes incomplete results."""
        files, self._files = self._files, None
        for file in files or ():
            with suppress(SkylaneError, OSError):  # The files are deleted.
                file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self) -> tuple[MaskTarget, BagTable]:
        if self._files is None:
            make_folder(self._folder, self._settings.out)
            labels = self._settings.card().labels.names
            masks = MASK_FORMATS[self._settings.masks](self._folder)
            self._files = masks, BagTable(self._folder / TABLE_NAME, labels)
        return self._files

    def _complete(self, end: BagEnd) -> None:
        for each in self._open():
            each.close()
        self._files = None
        BagManifest(
            bag=self._bag.name,
            size_bytes=self._bag.size_bytes,
            mtime_ns=self._bag.mtime_ns,
            sha256=end.sha256,
            identity=self._settings.identity(),
            frames=self.frames,
            unreadable=end.unreadable,
            first_unreadable=end.first_unreadable,
            false_claims=end.false_claims,
            notes=end.notes,
            outputs_sha256=outputs_sha256(self._folder),
        ).write(self._folder)
        place = results_folder(self._settings.out, self._bag.name)
        make_folder(place.parent, self._settings.out)
        if place.exists():  # Of another model or other settings: a folder cannot replace one that is not empty.
            place.replace(self._folder.with_suffix(".old"))
            shutil.rmtree(self._folder.with_suffix(".old"))
        self._folder.replace(place)

    def _block(self, error: SkylaneError | OSError) -> None:
        self._is_blocked = True
        if isinstance(error, OSError):
            self.fail(unwritable_message(error.filename or self._settings.out, error, "--out"))
        else:
            self.fail(str(error))


class BagManifest(Section):
    """The content of `manifest.json` in the folder of a bag's results. It exists only if they are complete."""

    schema_version: Literal[1] = 1
    bag: str
    size_bytes: int
    mtime_ns: int
    sha256: _Sha256  # Hash of the bag that `skylane bag info` shows.
    identity: dict[str, Any]  # See BatchSettings.identity.
    frames: int
    unreadable: int
    first_unreadable: str
    false_claims: tuple[str, ...] = ()  # Manifests of earlier versions have none.
    notes: tuple[str, ...] = ()  # See BagEnd.
    outputs_sha256: _Sha256  # See `outputs_sha256`.

    def write(self, folder: Path) -> None:
        """Writes the file into a staging folder; the results are complete when that folder is renamed."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False)
        write_file(folder / MANIFEST_NAME, text + "\n")

    def matches(self, bag: LibraryBag) -> bool:
        """Returns whether size and time of change are those of a bag, whatever its name."""
        return (self.size_bytes, self.mtime_ns) == (bag.size_bytes, bag.mtime_ns)


def read_manifest(folder: Path) -> BagManifest | None:
    """Returns the manifest of a folder of results; None if it is missing or invalid."""
    try:
        return BagManifest.model_validate_json(read_file(folder / MANIFEST_NAME))
    except (OSError, ValidationError):
        return None


def manifests(folder: Path) -> Iterator[tuple[Path, BagManifest]]:
    """Yields the manifests below a folder, each with its own folder, in the order of their paths."""
    for top, folders, files in os.walk(folder):
        if MANIFEST_NAME in files and (manifest := read_manifest(Path(top))) is not None:
            yield Path(top), manifest
            folders.clear()  # Masks.
        folders.sort()


def outputs_sha256(folder: Path) -> str:
    """Returns the SHA-256 of the paths and contents of all files in a folder of results but its manifest."""
    return tree_sha256(folder, without=MANIFEST_NAME)
