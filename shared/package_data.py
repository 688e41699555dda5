"""Finds what ships with Skylane beside its code, and the folder for a user's own models."""

import os
from pathlib import Path

_CODE = Path(__file__).resolve().parents[1]

IS_CHECKOUT = (_CODE / "setup.cfg").is_file()  # Otherwise this runs from an installed wheel.


def shipped(folder: str) -> Path:
    """The folder `configs`, `models` or `mosquitto` as it ships: in the checkout, or in the installed wheel."""
    return (_CODE if IS_CHECKOUT else _CODE / "skylane_data") / folder


def user_models() -> Path:
    """The folder that new models are written to unless another is given; never inside the installed wheel."""
    if IS_CHECKOUT:
        return shipped("models")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "skylane" / "models"
