import os
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from shared.imaging.image_codecs import ImageCodecError, ImageLimits
from shared.imaging.image_files import (
    ImageFileError,
    decode_picture,
    decode_unchanged,
    read_image_file,
    read_mask,
    stamp,
    write_png,
)


def test_png_round_trips_with_its_colour_order(tmp_path: Path) -> None:
    """OpenCV expects BGR for colour files."""
    image = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    write_png(tmp_path / "made" / "image.png", image)
    np.testing.assert_array_equal(read_image_file(tmp_path / "made" / "image.png"), image)


def test_class_ids_are_written_unchanged(tmp_path: Path) -> None:
    """Programs read the class ids from a mask's PNG."""
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write_png(tmp_path / "mask.png", mask)
    np.testing.assert_array_equal(read_image_file(tmp_path / "mask.png")[..., 0], mask)


@pytest.mark.parametrize(("cut", "problem"), [(slice(0), "is empty"), (slice(20), "PNG ends"), (slice(45), "damaged")])
def test_truncated_image_is_rejected(tmp_path: Path, cut: slice, problem: str) -> None:
    """The error names the damage, independently of OpenCV."""
    path = tmp_path / "image.png"
    write_png(path, np.zeros((20, 20, 3), np.uint8))
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(ImageFileError, match=problem):
        read_image_file(path)


def test_image_above_the_limits_is_rejected(tmp_path: Path) -> None:
    """A small file can decode to gigabytes."""
    path = tmp_path / "image.png"
    write_png(path, np.zeros((20, 20, 3), np.uint8))
    with pytest.raises(ImageFileError, match="is 20×20, more than 399 pixels"):
        read_image_file(path, ImageLimits(max_pixels=399))
    with pytest.raises(ImageFileError, match="is larger than 10 bytes"):
        read_image_file(path, ImageLimits(max_bytes=10))


def test_unreadable_and_unwritable_paths_are_reported(tmp_path: Path) -> None:
    """The error contains the given path."""
    with pytest.raises(ImageFileError, match=r"absent\.png: cannot be read \(No such file"):
        read_image_file(tmp_path / "absent.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageFileError, match="cannot be written"):
        write_png(tmp_path / "file" / "x.png", np.zeros((2, 2), np.uint8))


@pytest.mark.parametrize("size", [(64, 100), (608, 968), (1216, 1936)])
def test_stamp_marks_the_top_of_a_copy(size: tuple[int, int]) -> None:
    """Images from random weights must be recognisable at any size; the original is not changed."""
    image = np.full((*size, 3), 128, np.uint8)
    stamped = stamp(image, "untrained weights")
    assert (image == 128).all()
    changed = (stamped != image).any(axis=-1)
    assert changed.any()
    assert not changed[size[0] // 2 :].any()
    assert changed.any(axis=0).sum() > size[1] / 5


def jpeg(pixels: np.ndarray, kept: float = 1.0) -> bytes:
    """Returns a JPEG of which a part of the data was kept, with its end marker."""
    data = cv2.imencode(".jpg", pixels)[1].tobytes()
    return data[: round(len(data) * kept)].removesuffix(b"\xff\xd9") + b"\xff\xd9"


@pytest.mark.parametrize("kept", [0.5, 0.9])
@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "colour"])
def test_a_jpeg_without_its_end_is_damaged(channels: tuple[int, ...], kept: float) -> None:
    """OpenCV completes the picture in grey; an end marker does not make it whole."""
    image = np.random.default_rng(0).integers(0, 256, (96, 128, *channels), np.uint8)
    with pytest.raises(ImageCodecError, match="its data ends before the picture"):
        decode_picture(jpeg(image, kept))
    assert decode_picture(jpeg(image)).shape == image.shape


def test_a_picture_of_the_same_grey_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letterbox of this grey is no damage, with and without the library that tells."""
    image = np.full((96, 128, 3), 128, np.uint8)
    np.testing.assert_array_equal(decode_picture(jpeg(image)), image)
    monkeypatch.delitem(sys.modules, "shared.imaging.video_decoder", raising=False)
    monkeypatch.setitem(sys.modules, "av", None)
    np.testing.assert_array_equal(decode_picture(jpeg(image)), image)


def _declared(height: int, width: int) -> bytes:
    """Returns a PNG whose header declares a size that its data do not have."""
    png = bytearray(cv2.imencode(".png", np.zeros((4, 4), np.uint8))[1].tobytes())
    png[16:24] = struct.pack(">II", width, height)
    png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
    return bytes(png)


@pytest.mark.parametrize("decode", [decode_unchanged, decode_picture])
def test_a_header_that_declares_too_much_is_refused_by_its_size(decode: Callable[[bytes], object]) -> None:
    """OpenCV raises an error of its own, and names no size."""
    with pytest.raises(ImageCodecError, match="image is 60000×50000, more than 67108864 pixels"):
        decode(_declared(60_000, 50_000))


def test_a_stored_mask_is_read_and_what_is_none_is_named(tmp_path: Path) -> None:
    """The folder of a run may come from somebody else."""
    mask, path = np.arange(12, dtype=np.uint8).reshape(3, 4), tmp_path / "0.png"
    write_png(path, mask)
    np.testing.assert_array_equal(read_mask(path), mask)
    for data, problem in (
        (_declared(65_000, 65_000), "image is 65000×65000"),
        (b"", "image is empty"),
        (cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes(), "is not a mask of class ids"),
        (cv2.imencode(".png", np.zeros((4, 4), np.uint16))[1].tobytes(), "is not a mask of class ids"),
        (cv2.imencode(".png", np.zeros((40, 40), np.uint8))[1].tobytes()[:50], "damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(ImageFileError, match=rf"0\.png: .*{problem}"):
            read_mask(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ImageFileError, match="it is a FIFO"):
        read_mask(path)
