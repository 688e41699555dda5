"""The manifest of a run: JSON beside the log, whole or not there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.latency_log import LogError

MANIFEST_NAME = "manifest.json"
# Of a run's files: it rises when a column or a key comes, goes or changes its meaning. 1 had no worker_session, 2 neither
# model_version nor engine.
SCHEMA = 3


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest whole or not at all.

    Raises:
        LogError: the disk does not take it.
    """
    path, draft = folder / MANIFEST_NAME, folder / f"{MANIFEST_NAME}.new"
    try:
        draft.write_text(json.dumps(manifest, indent=2, sort_keys=False, default=str) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror}") from error


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
