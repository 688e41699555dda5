"""Writes the folder of a model in a repository."""

from pathlib import Path
from typing import Any

import yaml

from shared.files import tree_sha256
from shared.imaging.labels import Labels


def write_model(folder: Path, file: str, content: bytes, **keys: Any) -> None:
    """Writes a model of one file with its manifest, whose other keys are `keys`."""
    folder.mkdir(parents=True)
    (folder / file).write_bytes(content)
    manifest = {"file": file, "sha256": tree_sha256(folder / file), **keys}
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")


def label_keys(labels: Labels) -> list[dict[str, Any]]:
    """Returns labels as a manifest has them."""
    pairs = zip(labels.names, labels.colours, strict=True)
    return [{"name": name, "colour": list(colour)} for name, colour in pairs]
