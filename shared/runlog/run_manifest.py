"""The manifest of a run: a JSON file next to the latency log, written atomically."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from shared.files import create_file, open_own, read_file
from shared.runlog.latency_log import LogError

MANIFEST_NAME = "manifest.json"
# Incremented when a column or a key is added, removed or redefined. 1 lacked worker_session, 2 model_version and engine,
# 3 the outcomes `reused` and `answered_locally` with their columns, 4 the column `dispatch`.
SCHEMA = 5
_DRAFT_NAME = f"{MANIFEST_NAME}.new"
_RESERVED_BYTES = 64 << 10  # A manifest with many workers and nodes takes about 10 KiB.


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest atomically, in the space that `reserve_space` reserved, if it was called.

    Raises:
        LogError: the file cannot be written.
    """
    path, draft = folder / MANIFEST_NAME, folder / _DRAFT_NAME
    text = json.dumps(manifest, indent=2, sort_keys=False, default=str) + "\n"
    try:
        with _reserved(draft) as file:
            file.write(text.encode())
            file.truncate()
        draft.replace(path)
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror}") from error


def reserve_space(folder: Path) -> None:
    """Reserves disk space for the final manifest, as the log may have filled the disk by the end of the run.

    Without that manifest the run would look like one that was killed. Copy-on-write file systems (Btrfs, ZFS) do not
    keep the reservation.
    """
    with suppress(OSError), create_file(folder / _DRAFT_NAME) as file:
        file.write(b" " * _RESERVED_BYTES)


def _reserved(draft: Path) -> BinaryIO:
    """Opens the file without releasing the reserved space; a link or a FIFO in its place is removed."""
    try:
        return open_own(draft)
    except OSError:
        return create_file(draft)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a run.

    Raises:
        LogError: it is missing or not a manifest.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = json.loads(read_file(path))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: give the folder of a run") from error
    except (ValueError, RecursionError) as error:
        raise LogError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise LogError(f"{path} is not a run's manifest")
    return manifest
