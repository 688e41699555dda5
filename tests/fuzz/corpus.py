"""The corpus of each fuzz target: inputs that together reach the most code, replayed by a test."""

import hashlib
import importlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
TARGETS = ("wire", "bag", "settings", "gateway", "servers", "runs")
MAX_CORPUS_BYTES = 1 << 19  # Total size of a target's stored corpus; larger inputs are left out.


def target(name: str) -> Any:
    """Imports a target module, which has `seeds`, `run`, `MAX_BYTES` and optionally `mutated`."""
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def corpus(name: str) -> Path:
    """Returns the folder of a target's inputs."""
    return ROOT / "corpus" / name


def crashes(name: str) -> Path:
    """Returns the folder of inputs that failed; each stays there until the bug is fixed."""
    return ROOT / "crashes" / name


def inputs(folder: Path) -> list[Path]:
    """Returns the files of a folder, smallest first."""
    return sorted(folder.glob("*"), key=lambda path: (path.stat().st_size, path.name))


def store(folder: Path, data: bytes) -> Path:
    """Stores an input under the hash of its content and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
