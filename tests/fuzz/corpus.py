"""The corpus of a target: inputs that each reach what no other reaches, kept in the repository and replayed by a test."""

import hashlib
import importlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
TARGETS = ("wire", "bag", "settings", "doors", "servers", "runs")
MOST_BYTES = 1 << 19  # Of a target's corpus as it is kept; the smallest inputs come first.


def target(name: str) -> Any:
    """The target's module: `seeds`, `run`, `MAX_BYTES` and, where it has one, `mutated`."""
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def corpus(name: str) -> Path:
    """The folder of a target's inputs."""
    return ROOT / "corpus" / name


def crashes(name: str) -> Path:
    """The folder of the inputs that something came of; each of them is a finding until its cause is mended."""
    return ROOT / "crashes" / name


def inputs(folder: Path) -> list[Path]:
    """The files of a folder, the smallest first."""
    return sorted(folder.glob("*"), key=lambda path: (path.stat().st_size, path.name))


def store(folder: Path, data: bytes) -> Path:
    """Keep an input under the name of its content; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
