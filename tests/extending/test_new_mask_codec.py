"""A mask codec is added with one file, this one, and one line in the table: here two class ids in each byte."""

from pathlib import Path

import numpy as np
import pytest

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.codec import MASK_CODECS, Mask
from shared.inference.model import Model
from shared.registry import Entry
from tests.pipeline.rig import check_masks, pictures, play, worker


class NibbleMasks:
    """Class ids below 16, two in each byte."""

    def encode(self, mask: Mask) -> Buffer:
        """See MaskCodec."""
        if mask.max() > 15:
            raise SkylaneError(f"class id {mask.max()} does not fit four bits: choose another codec")
        ids = np.append(mask.reshape(-1), np.zeros(mask.size % 2, np.uint8))
        return (ids[::2] << 4 | ids[1::2]).tobytes()

    def decode(self, data: Buffer, height: int, width: int) -> Mask:
        """See MaskCodec."""
        if len(data) != -(-height * width // 2):
            raise SkylaneError(f"{len(data)} bytes for {height * width} class ids: send half as many")
        pairs = np.frombuffer(data, np.uint8)
        return np.stack((pairs >> 4, pairs & 15), axis=1).reshape(-1)[: height * width].reshape(height, width)


def test_a_new_mask_codec_carries_the_results_of_a_run(
    embedded_url: str,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vehicle requests it by the name in the table; the masks are those of the model called directly."""
    monkeypatch.setitem(MASK_CODECS, "nibbles", Entry(f"{__name__}:NibbleMasks", "edge"))
    out = tmp_path / "car-codec"
    with worker(embedded_url, model):
        code, printed = play(
            pictures(tmp_path, 3), embedded_url, out, closed_loop=True, codec="raw", mask_codec="nibbles"
        )
    assert code == 0, printed
    check_masks(out, model, count=3)
