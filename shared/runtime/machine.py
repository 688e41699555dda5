"""What a figure was measured on; it stands beside every figure."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = (
    *("skylane", "numpy", "opencv-python-headless", "paho-mqtt", "msgpack", "rosbags"),
    *("tensorflow", "openvino", "onnxruntime", "ai-edge-litert", "torch"),
)


def machine() -> dict[str, str | int | None]:
    """The machine and the versions that matter to a latency."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
    }


def usable_cores() -> int:
    """The processor's cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str | None:
    """The commit of the checkout this runs from, with "-dirty" where files were changed; None where there is none."""
    name = _git("describe", "--always", "--abbrev=12")
    # `describe --dirty` takes the index's lock whatever it is told, and a run that is killed meanwhile leaves it behind.
    changed = _git("status", "--porcelain", "--untracked-files=no") if name else None
    return f"{name}-dirty" if changed else name


def _git(*arguments: str) -> str | None:
    """What git says of the checkout; None where it says nothing, or this is none but lies within another's."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    """The processor's name, as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
