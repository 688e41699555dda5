"""The file that remembers which engine was the fastest on this host: `engines.json` in the user's cache."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "SKYLANE_CACHE"  # The environment variable that names another folder.
_FORM = 1  # Of the file; one of another form is written anew.
_MOST = 200  # Choices that are kept, the newest.


def cache_file() -> Path:
    """`engines.json` in `SKYLANE_CACHE`, else in `skylane/` of the user's cache (XDG)."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "engines.json"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "skylane" / "engines.json"


def recall(key: str) -> Mapping[str, Any] | None:
    """What was remembered for `key`; None where nothing was, or the file cannot be read."""
    found = _choices().get(key)
    return found if isinstance(found, dict) else None


def remember(key: str, choice: Mapping[str, Any]) -> None:
    """Keep a choice. A cache that cannot be written only costs the next start a measurement."""
    path = cache_file()
    held = {**_choices(), key: dict(choice)}
    kept = dict(list(held.items())[-_MOST:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Workers of one host may write at once: each file is whole, and the last one stays.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".engines-", delete=False) as draft:
            json.dump({"form": _FORM, "choices": kept}, draft, indent=1)
        Path(draft.name).replace(path)
    except OSError:
        return


@contextmanager
def alone() -> Iterator[None]:
    """Let one process of this user at a time measure; without a lock where the cache cannot be written."""
    path = cache_file().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Falls with the file, or with the process.
        yield


def _choices() -> dict[str, Any]:
    try:
        document = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or document.get("form") != _FORM:
        return {}
    choices = document.get("choices")
    return choices if isinstance(choices, dict) else {}
