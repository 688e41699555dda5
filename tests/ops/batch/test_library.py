"""What counts as a bag of a library, and what is refused or left out."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ops.batch.library import LibraryError, content_hash, ends_hash, scan
from shared.imaging.image_files import write_png
from tests.ops.batch.rig import write_bag


def names(library: Path, out: Path | None = None) -> list[str]:
    """Returns the names of the bags."""
    return [bag.name for bag in scan(library, out or library / "out").bags]


def test_bags_of_all_kinds_are_found_at_any_depth(tmp_path: Path) -> None:
    """A library mixes ROS 1 files, MCAP files and folders of ROS 2."""
    for name in ("a.bag", "deep/er/b.mcap", "deep/c"):
        write_bag(tmp_path / name)
    (tmp_path / "deep" / "notes.txt").write_text("sunny")
    library = scan(tmp_path, tmp_path / "out")
    assert [bag.name for bag in library.bags] == ["a.bag", "deep/c", "deep/er/b.mcap"]
    assert library.ignored == ("deep/notes.txt",)
    assert library.refused == {}
    folder = next(bag for bag in library.bags if bag.name == "deep/c")
    assert folder.size_bytes == sum(file.stat().st_size for file in folder.path.iterdir())


def test_results_below_the_library_are_not_bags_of_it(tmp_path: Path) -> None:
    """With --masks bag the results contain bags, which the next run must not take for input."""
    write_bag(tmp_path / "a.bag")
    write_bag(tmp_path / "results" / "bags" / "a.bag" / "masks_bag")
    assert names(tmp_path, tmp_path / "results") == ["a.bag"]


def test_links_that_lead_out_are_refused_by_name(tmp_path: Path) -> None:
    """A link in a shared library must not make the batch read files that its owner did not put there."""
    outside = write_bag(tmp_path / "outside" / "secret.bag")
    library = tmp_path / "library"
    write_bag(library / "a.mcap")
    write_bag(library / "folder")
    (library / "file.bag").symlink_to(outside)
    (library / "all").symlink_to(outside.parent)
    (library / "gone.bag").symlink_to(tmp_path / "outside" / "gone.bag")
    (library / "nothing.bag").symlink_to(library / "nowhere.bag")
    (library / "loop").symlink_to(library)
    (library / "again.mcap").symlink_to(library / "a.mcap")
    data = next((library / "folder").glob("*.mcap"))
    data.unlink()
    data.symlink_to(outside)
    found = scan(library, tmp_path / "out")
    assert [bag.name for bag in found.bags] == ["a.mcap"]
    assert set(found.refused) == {"all", "file.bag", "folder", "gone.bag", "nothing.bag"}
    assert "leads out of the library" in found.refused["file.bag"]
    assert "link to nothing" in found.refused["nothing.bag"]
    assert data.name in found.refused["folder"]
    assert set(found.ignored) == {"again.mcap", "loop"}


def test_names_that_no_table_can_hold_are_refused(tmp_path: Path) -> None:
    """File systems allow any bytes; a terminal must not get control characters from them."""
    for name in (b"latin-\xe9.bag", b"escape-\x1b[2J.bag", b"line\nfeed.bag", "Prüfstand 1.bag".encode()):
        shutil.copyfile(write_bag(tmp_path / "source.bag"), os.fsencode(tmp_path) + b"/library-" + name)
        (tmp_path / "source.bag").unlink()
    found = scan(tmp_path, tmp_path / "out")
    assert [bag.name for bag in found.bags] == ["library-Prüfstand 1.bag"]
    assert len(found.refused) == 3
    assert all(name.isprintable() for name in found.refused)
    assert all("rename it" in reason for reason in found.refused.values())


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    """Reading one would wait for ever."""
    os.mkfifo(tmp_path / "pipe.bag")
    os.mkfifo(write_bag(tmp_path / "folder") / "other.mcap")
    found = scan(tmp_path, tmp_path / "out")
    assert [bag.name for bag in found.bags] == ["folder"]
    assert ends_hash(found.bags[0].path)
    assert "pipe.bag" in found.ignored


def test_links_in_a_circle_are_refused_and_hide_nothing(tmp_path: Path) -> None:
    """One such link must not end the batch; the bag beside it is read."""
    write_bag(tmp_path / "good.bag")
    (tmp_path / "loop.bag").symlink_to("loop.bag")
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "there").symlink_to("here")
    (write_bag(tmp_path / "folder") / "part.mcap").symlink_to("part.mcap")
    found = scan(tmp_path, tmp_path / "out")
    assert [bag.name for bag in found.bags] == ["folder", "good.bag"]
    assert set(found.refused) == {"here", "loop.bag", "there"}
    assert all("is a link to nothing: remove it" in reason for reason in found.refused.values())


def test_a_folder_without_bags_is_refused(tmp_path: Path) -> None:
    """The path is probably wrong; an empty table would look like a result."""
    (tmp_path / "notes.txt").write_text("sunny")
    with pytest.raises(LibraryError, match="contains no recording: give bags"):
        scan(tmp_path, tmp_path / "out")


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    """The message says what to give instead; results among the bags would be bags of the next run."""
    (tmp_path / "bags").mkdir()
    for library, out in ((tmp_path, tmp_path), (tmp_path / "bags", tmp_path)):
        with pytest.raises(LibraryError, match="choose another --out"):
            scan(library, out)
    with pytest.raises(LibraryError, match="record a live camera first"):
        scan(Path("camera:0"), tmp_path / "out")


def test_a_recording_is_a_library_of_its_own(tmp_path: Path) -> None:
    """`play` takes the same path."""
    for name in ("folder", "a.bag"):
        assert names(write_bag(tmp_path / name), tmp_path / "out") == [name]


def test_videos_and_folders_of_images_are_recordings(tmp_path: Path) -> None:
    """A batch takes what `play` takes; label images beside images are no recording."""
    for name in ("a.MP4", "seq/images/1.png", "seq/images/2.png", "seq/labels/1.png", "cam.mkv/x.txt", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path) == ["a.MP4", "seq/images"]
    found = scan(tmp_path, tmp_path / "out")
    assert "seq/labels" in found.ignored
    assert found.bags[1].size_bytes == 2
    assert names(tmp_path / "a.MP4", tmp_path / "out") == ["a.MP4"]
    assert names(tmp_path / "seq" / "images", tmp_path / "out") == ["images"]


def test_another_list_of_times_is_another_recording(tmp_path: Path) -> None:
    """Its stamps are in the table of the batch, which would stay as it is; it lies beside the folder of images."""
    (tmp_path / "image_02" / "data").mkdir(parents=True)
    for name in ("0", "1"):
        write_png(tmp_path / "image_02" / "data" / f"{name}.png", np.zeros((8, 8, 3), np.uint8))
    times, found = tmp_path / "image_02" / "timestamps.txt", []
    for text in ("1400000000\n1400000001\n", "1400000000\n1400000001.5\n"):
        times.write_text(text)
        (bag,) = scan(tmp_path, tmp_path / "out").bags
        found.append((bag.size_bytes, content_hash(bag.path)))
    assert found[0][0] < found[1][0]
    assert found[0][1] != found[1][1]


def test_images_in_two_levels_are_refused(tmp_path: Path) -> None:
    """`play` takes the images of the folder itself; either choice would leave out the others."""
    for name in ("0.png", "rear/0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(LibraryError, match="has images of its own beside folders of images"):
        scan(tmp_path, tmp_path / "out")
    with pytest.raises(LibraryError, match="does not exist"):
        scan(tmp_path / ("x" * 300), tmp_path / "out")


def test_pictures_beside_recordings_hide_none_of_them(tmp_path: Path) -> None:
    """A plot, or the cover of a data set, is no recording, and makes none of its folder."""
    for name in ("a.mcap", "cover.png", "sub/b.mcap", "sub/plot.png", "run/masks/camera/0.png", "run/camera/0.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path) == ["a.mcap", "run/camera", "sub/b.mcap"]
    with pytest.raises(LibraryError, match="is no file and no folder"):
        scan(Path("/dev/null"), tmp_path / "out")
