"""The manifest of a bag's results: what they were computed from, so that a finished bag is not read again."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ops.batch.library import LibraryBag
from shared.config import Section
from shared.files import file_sha256, read_file, write_file
from shared.models.manifest import SHA256

MANIFEST_NAME = "manifest.json"
TABLE_NAME = "frames.parquet"  # The table of one bag, and of the whole batch.

_Sha256 = Annotated[str, Field(pattern=SHA256)]


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
        """Writes the file; the folder is still a staging folder, which makes it complete by renaming it."""
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
    """Returns the SHA-256 of the paths and digests of all files in a folder of results but its manifest."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    digest = hashlib.sha256()
    for name in sorted(files.keys() - {MANIFEST_NAME}):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(file_sha256(files[name])))
    return digest.hexdigest()
