from pathlib import Path

import numpy as np
import pytest

from shared.imaging.image_codecs import ImageLimits
from shared.imaging.image_files import ImageFileError, read_image_file, stamp_untrained, write_png


def test_a_picture_written_and_read_keeps_its_pixels_and_colour_order(tmp_path: Path) -> None:
    """Red stays red: OpenCV's files are BGR."""
    picture = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    write_png(tmp_path / "made" / "picture.png", picture)
    np.testing.assert_array_equal(read_image_file(tmp_path / "made" / "picture.png"), picture)


def test_class_ids_are_written_as_they_are(tmp_path: Path) -> None:
    """A mask's PNG is read by programs: its numbers are the class ids."""
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write_png(tmp_path / "mask.png", mask)
    np.testing.assert_array_equal(read_image_file(tmp_path / "mask.png")[..., 0], mask)


@pytest.mark.parametrize(
    ("cut", "problem"), [(slice(0), "send a JPEG or a PNG"), (slice(20), "PNG ends"), (slice(45), "damaged")]
)
def test_a_cut_picture_is_refused(tmp_path: Path, cut: slice, problem: str) -> None:
    """A file that stops short gives one line, whatever OpenCV makes of it."""
    path = tmp_path / "picture.png"
    write_png(path, np.zeros((20, 20, 3), np.uint8))
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(ImageFileError, match=problem):
        read_image_file(path)


def test_a_picture_over_the_limits_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """A small file can unfold into gigabytes."""
    path = tmp_path / "picture.png"
    write_png(path, np.zeros((20, 20, 3), np.uint8))
    with pytest.raises(ImageFileError, match="is 20×20, more than 399 pixels"):
        read_image_file(path, ImageLimits(max_pixels=399))
    with pytest.raises(ImageFileError, match="is larger than 10 bytes"):
        read_image_file(path, ImageLimits(max_bytes=10))


def test_a_missing_file_and_a_place_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    """The path in the line is the one that was given."""
    with pytest.raises(ImageFileError, match=r"absent\.png: cannot be read \(No such file"):
        read_image_file(tmp_path / "absent.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageFileError, match="cannot be written"):
        write_png(tmp_path / "file" / "x.png", np.zeros((2, 2), np.uint8))


@pytest.mark.parametrize("size", [(64, 100), (608, 968), (1216, 1936)])
def test_the_stamp_marks_the_top_of_a_copy(size: tuple[int, int]) -> None:
    """A picture made with random weights must not pass for a result, at any size; the frame itself is not touched."""
    picture = np.full((*size, 3), 128, np.uint8)
    stamped = stamp_untrained(picture)
    assert (picture == 128).all()
    changed = (stamped != picture).any(axis=-1)
    assert changed.any()
    assert not changed[size[0] // 2 :].any()
    assert changed.any(axis=0).sum() > size[1] / 5
