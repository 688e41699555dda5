"""An image codec is added with one file, this one, and one line in the table: here differences of pixels, deflated."""

import zlib
from math import prod
from pathlib import Path

import numpy as np
import pytest

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.codec import IMAGE_CODECS
from shared.imaging.frames import Layout, Pixels
from shared.inference.model import Model
from shared.registry import Entry
from tests.pipeline.rig import check_masks, pictures, play, worker


class DifferenceImages:
    """Deflates the difference of each value of 8 bits to the one before."""

    def encode(self, pixels: Pixels, _layout: Layout, _quality: int) -> Buffer:
        """See ImageCodec."""
        return zlib.compress(np.diff(pixels.reshape(-1), prepend=np.uint8(0)).tobytes())

    def decode(self, data: Buffer, _layout: Layout, shape: tuple[int, ...]) -> Pixels:
        """See ImageCodec."""
        differences = zlib.decompressobj().decompress(data, prod(shape))
        if len(differences) != prod(shape):
            raise SkylaneError(f"{len(differences)} values for the shape {shape}: send all of them")
        return np.cumsum(np.frombuffer(differences, np.uint8), dtype=np.uint8).reshape(shape)


def test_a_new_image_codec_carries_the_frames_of_a_run(
    embedded_url: str,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is chosen by the name in the table; the masks are those of the model called directly."""
    monkeypatch.setitem(IMAGE_CODECS, "differences", Entry(f"{__name__}:DifferenceImages", "edge"))
    out = tmp_path / "car-codec"
    with worker(embedded_url, model):
        code, printed = play(pictures(tmp_path, 3), embedded_url, out, closed_loop=True, codec="differences")
    assert code == 0, printed
    check_masks(out, model, count=3)
