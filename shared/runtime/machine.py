"""Describes the machine and the software on which a value was measured."""

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
    """Returns the machine and the versions that affect latency."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: package_version(name) for name in _LIBRARIES},
    }


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str | None:
    """Returns the commit of the checkout, with "-dirty" if files were changed; None if this is no checkout."""
    name = _git("describe", "--always", "--abbrev=12")
    # `describe --dirty` always locks the index; killing that process would leave the lock behind.
    changed = _git("status", "--porcelain", "--untracked-files=no") if name else None
    return f"{name}-dirty" if changed else name


def _git(*arguments: str) -> str | None:
    """Returns git's output for the checkout; None if it is empty, or if only an outer folder is a repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def _processor() -> str:
    """Returns the processor's name from the kernel."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def package_version(name: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
