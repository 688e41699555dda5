"""Files that a user writes: settings, manifests of models, label files. An input is one byte that picks the reader, then the file."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.study.plan.study_plan import Plan
from cloud.config import CloudConfig
from cloud.models.manifest import Manifest
from edge.config import EdgeConfig
from shared.config import Section, read_yaml
from shared.errors import SkylaneError
from shared.imaging.labels import MAX_LABELS, Labels, read_labels

MAX_BYTES = 1 << 13
_ROOT = Path(__file__).resolve().parents[3]

_folder = Path(tempfile.mkdtemp(prefix="skylane-fuzz-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def _section(section: type[Section]) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        settings = read_yaml(path, section)
        assert section.model_validate(settings.model_dump()) == settings

    return read


def _labels(path: Path) -> None:
    labels = read_labels(path)
    assert Labels.from_wire(labels.to_wire()) == labels
    assert len(labels.names) <= MAX_LABELS


class _Reader(NamedTuple):
    read: Callable[[Path], None]
    name: str
    seeds: str  # Files of this repository, a pattern.


_READERS = (
    _Reader(_section(Manifest), "model.yaml", "models/*/model.yaml"),
    _Reader(_section(EdgeConfig), "edge.yaml", "configs/edge*.yaml"),
    _Reader(_section(CloudConfig), "cloud.yaml", "configs/cloud*.yaml"),
    _Reader(_section(Plan), "study.yaml", "configs/studies/*.yaml"),
    _Reader(_labels, "labels.yaml", "configs/labels/*.yaml"),
    _Reader(_labels, "labels.xml", "configs/labels/*.xml"),
)
_XML = b"<a><SLabel><Name>road</Name><fromColour>128 64 128</fromColour><toValue>1</toValue></SLabel></a>"


def seeds() -> Iterator[bytes]:
    """The files that ship."""
    for place, reader in enumerate(_READERS):
        files = [path.read_bytes() for path in sorted(_ROOT.glob(reader.seeds))] or [_XML]
        yield from (bytes([place]) + content for content in files if len(content) < MAX_BYTES)


def run(data: bytes) -> None:
    """Read one file; anything but our own errors, each in one line, is a finding."""
    if not data:
        return
    reader = _READERS[data[0] % len(_READERS)]
    path = _folder / reader.name
    path.write_bytes(data[1:])
    try:
        reader.read(path)
    except SkylaneError as error:
        told = str(error)
        assert "\n" not in told
        assert len(told) < 2000
