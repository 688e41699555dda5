"""The manifest of a run: JSON beside the log, whole or not there."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared.runlog.latency_log import LogError

MANIFEST_NAME = "manifest.json"
# Of a run's files: it rises when a column or a key comes, goes or changes its meaning. 1 had no worker_session, 2 neither
# model_version nor engine.
SCHEMA = 3
_DRAFT_NAME = f"{MANIFEST_NAME}.new"
_ROOM_BYTES = 64 << 10  # Of a manifest; one of many workers and nodes has some 10 KiB.


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest whole or not at all, in the room that was kept for it where `reserve_space` was called.

    Raises:
        LogError: the disk does not take it.
    """
    path, draft = folder / MANIFEST_NAME, folder / _DRAFT_NAME
    text = json.dumps(manifest, indent=2, sort_keys=False, default=str) + "\n"
    try:
        with draft.open("r+b" if draft.exists() else "wb") as file:  # To empty it first would give the room away.
            file.write(text.encode())
            file.truncate()
        draft.replace(path)
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror}") from error


def reserve_space(folder: Path) -> None:
    """Take the room now that the manifest will need when the run ends: by then the disk may be full of its log.

    Without it such a run would say for ever that it goes on, and be closed like a killed one. On a disk that is all but
    full less room is kept; on a file system that writes nothing in place (Btrfs, ZFS) it helps nothing.
    """
    with suppress(OSError), (folder / _DRAFT_NAME).open("wb", buffering=0) as file:
        file.write(b" " * _ROOM_BYTES)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a run's manifest.

    Raises:
        LogError: there is none, or it is not one.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: give the folder of a run") from error
    except (ValueError, RecursionError) as error:
        raise LogError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise LogError(f"{path} is not a run's manifest")
    return manifest
