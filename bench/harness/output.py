"""The line under a figure that says what it was measured on."""

from collections.abc import Mapping
from typing import Any

_LIBRARIES = ("python", "tensorflow", "numpy", "paho-mqtt")


def machine_line(machine: Mapping[str, Any], broker: str | None = None) -> str:
    """Processor, broker and versions; `machine` as `shared.runtime.machine` tells it."""
    versions = ", ".join(f"{name} {machine[name]}" for name in _LIBRARIES)
    parts = (f"{machine['processor']}, {machine['cores']} cores", broker, versions)
    return "; ".join(part for part in parts if part)
