"""Finds the data that ships with Skylane, and the folder for a user's own models."""

import os
from pathlib import Path

_CODE = Path(__file__).resolve().parents[1]

IS_CHECKOUT = (_CODE / "setup.cfg").is_file()  # False in an installed wheel.


def shipped(folder: str) -> Path:
    """Returns the shipped folder `configs`, `models` or `mosquitto`."""
    return (_CODE if IS_CHECKOUT else _CODE / "skylane_data") / folder


def user_models() -> Path:
    """Returns the default folder for new models, which is never inside an installed wheel."""
    if IS_CHECKOUT:
        return shipped("models")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "skylane" / "models"
