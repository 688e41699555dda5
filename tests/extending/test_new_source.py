"""A source is added with one file, this one, and one line in the table: here a NumPy file of images."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from edge.sources.source import SOURCES, SourceEntry, SourceError
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.inference.model import Model
from tests.pipeline.rig import HEIGHT, WIDTH, check_masks, noise, play, worker

FRAMES = 5
PERIOD_NS = 10**8


class ArraySource:
    """The images of a NumPy file, uint8 N×H×W×3 in RGB order, at ten images per second."""

    def __init__(
        self, path: Path, *, topics: Sequence[str] = (), start_offset_s: float = 0.0, duration_s: float | None = None
    ) -> None:
        if topics or start_offset_s or duration_s:
            raise SourceError(f"{path} is played whole: leave --topic, --start-offset and --playback-duration out")
        self._path = path
        self._images = np.load(path, mmap_mode="r")

    @property
    def frame_count(self) -> int | None:
        """See FrameSource."""
        return len(self._images)

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource."""
        return {"kind": "array", "path": self._path.name}

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        for index, pixels in enumerate(self._images):
            at_ns = index * PERIOD_NS
            yield Frame(np.ascontiguousarray(pixels), Layout.RGB8, "array", index, at_ns, at_ns, 0)

    def close(self) -> None:
        """See FrameSource."""


def test_a_new_source_is_recognised_and_played(
    embedded_url: str,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its row in the table says which files it opens, and each mask is that of its image."""
    monkeypatch.setitem(SOURCES, "array", SourceEntry(f"{__name__}:ArraySource", "edge", suffixes=(".npy",)))
    images = [noise(index, (HEIGHT, WIDTH, 3))[..., ::-1] for index in range(FRAMES)]
    np.save(tmp_path / "drive.npy", np.stack(images))
    out = tmp_path / "car-array"
    with worker(embedded_url, model):
        code, printed = play(tmp_path / "drive.npy", embedded_url, out, closed_loop=True, codec="raw")
    assert code == 0, printed
    check_masks(out, model, FRAMES)
