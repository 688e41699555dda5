"""The cache of engine choices on this host: `engines.json` in the user's cache folder."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from shared.files import open_own

CACHE_VARIABLE = "SKYLANE_CACHE"  # Environment variable with the path of another folder.
_MAX_CHOICES = 200  # The newest ones are kept.


class Measurement(msgspec.Struct, frozen=True):
    """The result of a comparison of engines."""

    chosen: str  # The text of the selected candidate.
    speed: float  # Relative to the reference, by the medians of the rounds.
    agreement: float  # Share of labels that equal the reference, 0 to 1.
    refused: tuple[str, ...]  # Candidates that were not suitable, with the reason.
    measured: str  # Date, such as 2026-11-21.


class _Document(msgspec.Struct):
    choices: dict[str, Measurement]
    form: Literal[2] = 2  # Files of other versions are replaced.


def cache_file() -> Path:
    """`engines.json` in `SKYLANE_CACHE`, by default in `skylane/` of the XDG cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "engines.json"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "skylane" / "engines.json"


def load(key: str) -> Measurement | None:
    """Returns the stored measurement, or None if it is missing or the file is unreadable."""
    return _stored().get(key)


def store(key: str, measurement: Measurement) -> None:
    """Stores a measurement. Errors are ignored, because the next start can repeat it."""
    path = cache_file()
    kept = dict(list({**_stored(), key: measurement}.items())[-_MAX_CHOICES:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several workers may write at the same time; replacing the file keeps it complete.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".engines-", delete=False) as draft:
            draft.write(msgspec.json.format(msgspec.json.encode(_Document(kept)), indent=1))
        Path(draft.name).replace(path)
    except OSError:
        return


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Lets one process of this user measure at a time; without effect if the cache folder is not writable."""
    path = cache_file().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(path)
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Released when the file is closed or the process ends.
        yield


def _stored() -> dict[str, Measurement]:
    try:
        return msgspec.json.decode(cache_file().read_bytes(), type=_Document).choices
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors.
        return {}
