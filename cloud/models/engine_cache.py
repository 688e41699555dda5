"""The cache of engine choices on this host: `engines.json` in the user's cache folder."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "SKYLANE_CACHE"  # Environment variable with the path of another folder.
_FORMAT_VERSION = 1  # Files of other versions are replaced.
_MAX_CHOICES = 200  # The newest ones are kept.


def cache_file() -> Path:
    """`engines.json` in `SKYLANE_CACHE`, by default in `skylane/` of the XDG cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "engines.json"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "skylane" / "engines.json"


def load(key: str) -> Mapping[str, Any] | None:
    """Returns the stored choice, or None if it is missing or the file is unreadable."""
    found = _choices().get(key)
    return found if isinstance(found, dict) else None


def store(key: str, choice: Mapping[str, Any]) -> None:
    """Stores a choice. Errors are ignored, because the next start can repeat the measurement."""
    path = cache_file()
    held = {**_choices(), key: dict(choice)}
    kept = dict(list(held.items())[-_MAX_CHOICES:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several workers may write at the same time; replacing the file keeps it complete.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".engines-", delete=False) as draft:
            json.dump({"form": _FORMAT_VERSION, "choices": kept}, draft, indent=1)
        Path(draft.name).replace(path)
    except OSError:
        return


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Lets one process of this user measure at a time; without effect if the cache folder is not writable."""
    path = cache_file().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Released when the file is closed or the process ends.
        yield


def _choices() -> dict[str, Any]:
    try:
        document = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or document.get("form") != _FORMAT_VERSION:
        return {}
    choices = document.get("choices")
    return choices if isinstance(choices, dict) else {}
