"""Fuzz target of files written by users: settings, manifests, label and tuning files. The first byte selects the reader."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from analysis.study.study_plan import StudyPlan
from cloud.config import CloudConfig
from edge.config import EdgeConfig
from shared.config import Section, read_yaml
from shared.errors import SkylaneError
from shared.imaging.labels import MAX_LABELS, read_labels
from shared.models.manifest import Manifest
from shared.reuse.tuning import read_tuning, write_tuning

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
    assert len(read_labels(path).names) <= MAX_LABELS


def _tuning(path: Path) -> None:
    tuning = read_tuning(path)
    write_tuning(path, tuning)
    assert read_tuning(path) == tuning


class _Reader(NamedTuple):
    read: Callable[[Path], None]
    name: str
    seeds: str  # Glob pattern in the repository.
    example: bytes = b""  # A seed, for a kind of file that the repository may not have.


_XML = b"<a><SLabel><Name>road</Name><fromColour>128 64 128</fromColour><toValue>1</toValue></SLabel></a>"
_TUNING = (
    b"reference: {name: a, sha256: %(hash)b}\n"
    b"gate: {mse: 1.5, pixels: 2.0, reuse_frames: 10, reuse_ms: 1000.0}\n"
    b"local: {name: b, sha256: %(hash)b, temperature: 1.5, c_low: 0.1, c_high: 0.9}\n"
) % {b"hash": b"ab" * 32}

_READERS = (
    _Reader(_section(Manifest), "model.yaml", "models/*/model.yaml"),
    _Reader(_section(EdgeConfig), "edge.yaml", "configs/edge*.yaml"),
    _Reader(_section(CloudConfig), "cloud.yaml", "configs/cloud*.yaml"),
    _Reader(_section(StudyPlan), "study.yaml", "configs/studies/*.yaml"),
    _Reader(_labels, "labels.yaml", "configs/labels/*.yaml"),
    _Reader(_labels, "labels.xml", "configs/labels/*.xml", _XML),
    _Reader(_tuning, "tuning.yaml", "configs/tuning/*.yaml", _TUNING),
)


def seeds() -> Iterator[bytes]:
    """Yields the configuration files of the repository."""
    for index, reader in enumerate(_READERS):
        files = [reader.example, *(path.read_bytes() for path in sorted(_ROOT.glob(reader.seeds)))]
        yield from (bytes([index]) + content for content in files if len(content) < MAX_BYTES)


def run(data: bytes) -> None:
    """Reads one file; raises unless every error is a SkylaneError with a message of one line."""
    if not data:
        return
    reader = _READERS[data[0] % len(_READERS)]
    path = _folder / reader.name
    path.write_bytes(data[1:])
    try:
        reader.read(path)
    except SkylaneError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 2000
