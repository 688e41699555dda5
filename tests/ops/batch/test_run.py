"""A batch does each bag once, writes masks and a table, and names what it could not do."""

import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from ops.batch.output.results import read_manifest, results_folder
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.geometry import UNSEEN, plan, to_source
from shared.models.repository import Repository
from tests.full_disk import disk_of
from tests.ops.batch.rig import CAMERAS, HEIGHT, MODEL, MODELS, WIDTH, Watcher, contents, run, write_bag, write_library


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library of three bags and its results."""
    folder = tmp_path_factory.mktemp("first")
    result = run(write_library(folder / "library"), folder / "out")
    assert (result.frames, result.failed, sorted(result.done)) == (12, {}, ["1.bag", "day/0.mcap", "folder-2"])
    return folder


@pytest.fixture
def finished(first_run: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of that library, and of its results."""
    shutil.copytree(first_run, tmp_path, dirs_exist_ok=True)
    record = tmp_path / "out" / "batch.json"  # It names the library.
    record.write_text(record.read_text(encoding="utf-8").replace(str(first_run), str(tmp_path)), encoding="utf-8")
    return tmp_path / "library", tmp_path / "out"


def table(out: Path) -> list[dict[str, Any]]:
    """Returns the rows of the table."""
    rows: list[dict[str, Any]] = pq.read_table(out / "frames.parquet").to_pylist()
    return rows


def mask(out: Path, row: dict[str, Any]) -> Any:
    """Returns the mask of a row, written as PNG."""
    return cv2.imread(str(out / row["mask"]), cv2.IMREAD_UNCHANGED)


def replace_content(path: Path) -> None:
    """Overwrites a file with other bytes of the same length, and keeps its time of change."""
    state = path.stat()
    path.write_bytes(bytes(state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_every_frame_has_a_mask_and_a_row_with_exact_shares(first_run: Path) -> None:
    """A share is the number of the label's pixels divided by that of all pixels."""
    out = first_run / "out"
    rows = table(out)
    assert [(row["bag"], row["frame"]) for row in rows] == [
        *(("1.bag", index) for index in range(4)),
        *(("day/0.mcap", index) for index in range(3)),
        *(("folder-2", index) for index in range(5)),
    ]
    labels = Repository(MODELS).find(MODEL).card().labels.names
    for row in rows:
        found = mask(out, row)
        assert (row["height"], row["width"], row["camera"], row["model"]) == (HEIGHT, WIDTH, CAMERAS[0], MODEL)
        assert row["stamp_ns"] == 10**18 + row["frame"] * 10**8
        assert [row[f"share_{label}"] for label in labels] == [
            np.count_nonzero(found == class_id) / found.size for class_id in range(len(labels))
        ]


def test_a_finished_bag_is_not_read_again(finished: tuple[Path, Path]) -> None:
    """A library of terabytes must not be read to find out that nothing is to be done; --verify does read it."""
    library, out = finished
    before = contents(out)
    replace_content(library / "1.bag")
    result = run(library, out)
    assert (result.done, sorted(result.finished), result.failed) == ([], ["1.bag", "day/0.mcap", "folder-2"], {})
    after = contents(out)
    assert after == before
    watcher = Watcher()
    result = run(library, out, watcher, verify=True)
    assert watcher.planned.redone == {"1.bag": "the content of the bag has changed"}
    assert list(result.failed) == ["1.bag"]
    assert sorted(result.finished) == ["day/0.mcap", "folder-2"]


def test_damaged_results_are_found_and_done_again(finished: tuple[Path, Path]) -> None:
    """A disk error or a curious user changed a mask: --verify restores it."""
    library, out = finished
    before = contents(out)
    next(out.rglob("*.png")).write_bytes(b"changed")
    watcher = Watcher()
    result = run(library, out, watcher, verify=True)
    assert list(watcher.planned.redone.values()) == ["its results were changed"]
    assert len(result.done) == 1
    assert contents(out) == before


def test_a_missing_or_damaged_table_of_a_bag_is_made_again(finished: tuple[Path, Path]) -> None:
    """The message for a damaged one says how."""
    library, out = finished
    before = contents(out)
    part = results_folder(out, "1.bag") / "frames.parquet"
    part.unlink()
    assert run(library, out).done == ["1.bag"]
    assert contents(out) == before
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(SkylaneError, match="run the batch again with --verify"):
        run(library, out)
    assert run(library, out, verify=True).done == ["1.bag"]
    assert contents(out) == before


def test_other_settings_make_all_bags_be_done_again(finished: tuple[Path, Path]) -> None:
    """A table must not mix results of different settings; the reason is reported."""
    watcher = Watcher()
    result = run(*finished, watcher, masks="npz")
    assert sorted(result.done) == sorted(watcher.planned.redone) == ["1.bag", "day/0.mcap", "folder-2"]
    assert {*watcher.planned.redone.values()} == {"masks was png, is npz"}
    given = {"library": finished[0], "out": finished[1], "model": MODEL, "repository": MODELS}
    identity = BatchSettings.model_validate(given).identity()
    for key, value in {"threads": 2, "resize": "stretch", "demosaic": "bilinear"}.items():
        other = BatchSettings.model_validate(given | {key: value}).identity()
        assert [name for name in identity if other[name] != identity[name]] == [key]
    repository = finished[0].parent / "models"
    shutil.copytree(MODELS / MODEL, repository / MODEL)
    manifest = repository / MODEL / "model.yaml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("rgb8", "bgr8"), encoding="utf-8")
    other = BatchSettings.model_validate(given | {"repository": repository}).identity()
    assert [name for name in identity if other[name] != identity[name]] == ["manifest_sha256"]


def test_a_changed_bag_is_done_again_and_a_new_one_added(finished: tuple[Path, Path]) -> None:
    """Recording goes on while a library is in use."""
    library, out = finished
    (library / "1.bag").unlink()
    write_bag(library / "1.bag", frames=2, seed=9)
    write_bag(library / "new.mcap", frames=1, seed=10)
    watcher = Watcher()
    result = run(library, out, watcher)
    assert watcher.planned.redone == {"1.bag": "the bag has changed"}
    assert sorted(result.done) == ["1.bag", "new.mcap"]
    assert (sorted(result.finished), result.frames) == (["day/0.mcap", "folder-2"], 11)
    assert len(table(out)) == 11


def test_a_moved_bag_keeps_its_results(finished: tuple[Path, Path]) -> None:
    """Sorting a library into folders must not cost days of inference; a removed bag leaves the table."""
    library, out = finished
    before = {row["mask"].replace("day/0", "night/zero"): mask(out, row) for row in table(out)}
    (library / "night").mkdir()
    (library / "day" / "0.mcap").rename(library / "night" / "zero.mcap")
    (library / "1.bag").unlink()
    watcher = Watcher()
    result = run(library, out, watcher)
    assert watcher.planned.moved == {"night/zero.mcap": "day/0.mcap"}
    assert watcher.planned.stale == ["1.bag"]
    assert (result.done, result.frames) == ([], 8)
    for row in table(out):
        np.testing.assert_array_equal(mask(out, row), before[row["mask"]])


def test_a_copy_is_done_once_and_named(tmp_path: Path) -> None:
    """Its frames would count twice in every statistic; the next run does not read it again."""
    library, out = write_library(tmp_path / "library", bags=2), tmp_path / "out"
    (library / "copy.bag").write_bytes((library / "1.bag").read_bytes())
    result = run(library, out)
    assert result.copies == {"copy.bag": "1.bag"}
    assert {row["bag"] for row in table(out)} == {"1.bag", "day/0.mcap"}
    for name in ("1.bag", "copy.bag"):
        replace_content(library / name)
    result = run(library, out)
    assert (result.copies, result.done, result.failed) == ({"copy.bag": "1.bag"}, [], {})


def test_bags_that_cannot_be_read_are_named_and_the_others_done(tmp_path: Path) -> None:
    """Every real library has files that were cut off, renamed or never bags."""
    library, out = write_library(tmp_path / "library", bags=1), tmp_path / "out"
    (library / "empty.bag").touch()
    (library / "text.mcap").write_text("not a bag")
    whole = write_bag(library / "cut.bag", frames=200).read_bytes()  # More than one chunk.
    (library / "cut.bag").write_bytes(whole[: len(whole) * 9 // 10])
    with BagWriter(library / "silent.mcap") as bag:
        bag.write_camera_info("/info", 4, 4, 1.0, stamp_ns=1, received_ns=1, frame_id="camera")
    (library / "link.bag").symlink_to(tmp_path / "elsewhere.bag")
    result = run(library, out, processes=2)
    assert result.done == ["day/0.mcap"]
    assert sorted(result.failed) == ["cut.bag", "empty.bag", "link.bag", "silent.mcap", "text.mcap"]
    assert "is not a bag" in result.failed["text.mcap"]
    assert "skylane bag crop" in result.failed["cut.bag"]
    assert "no camera images" in result.failed["silent.mcap"]
    assert {row["bag"] for row in table(out)} == {"day/0.mcap"}
    assert not results_folder(out, "cut.bag").exists()


def test_a_frame_that_cannot_be_decoded_is_left_out_and_named(tmp_path: Path) -> None:
    """One broken message of a camera does not cost the other frames of its bag."""
    path, out = tmp_path / "library" / "a.bag", tmp_path / "out"
    path.parent.mkdir()
    with BagWriter(path) as bag:
        for index, side in enumerate((HEIGHT, HEIGHT - 1, HEIGHT)):  # A Bayer image with an odd side is no image.
            pixels = np.full((side, WIDTH), 90, np.uint8)
            encoding = "bayer_rggb8" if side == HEIGHT else "no such encoding"
            bag.write_image(CAMERAS[0], pixels, encoding, index + 1, index + 1, "camera")
    result = run(path.parent, out)
    assert (result.done, result.frames) == (["a.bag"], 2)
    assert "1 unreadable" in result.unreadable["a.bag"]
    assert [row["frame"] for row in table(out)] == [0, 2]
    manifest = read_manifest(results_folder(out, "a.bag"))
    assert manifest is not None
    assert (manifest.frames, manifest.unreadable) == (2, 1)


def test_all_cameras_are_used_or_the_given_topic(tmp_path: Path) -> None:
    """Frames are numbered as in the bag; their masks are in a folder of their camera."""
    library = tmp_path / "library"
    write_bag(library / "a.mcap", frames=2, cameras=CAMERAS)
    assert run(library, tmp_path / "both").frames == 4
    rows = table(tmp_path / "both")
    assert [(row["camera"], row["frame"]) for row in rows] == [(CAMERAS[index % 2], index) for index in range(4)]
    assert rows[1]["mask"] == "bags/a.mcap/masks/rear_image_raw/000001.png"
    assert run(library, tmp_path / "rear", topics=("rear/image_raw",)).frames == 2
    assert {row["camera"] for row in table(tmp_path / "rear")} == {CAMERAS[1]}
    failed = run(library, tmp_path / "none", topics=("/side/image_raw",)).failed
    assert "no topic" in failed["a.mcap"]


def test_npz_files_and_a_bag_hold_the_same_masks(tmp_path: Path) -> None:
    """The bag has the size and the stamps of the frames, so that a viewer shows both together."""
    library = tmp_path / "library"
    write_bag(library / "a.mcap", frames=3)
    for masks in ("png", "npz", "bag"):
        run(library, tmp_path / masks, masks=masks)
    rows = table(tmp_path / "png")
    found = [mask(tmp_path / "png", row) for row in rows]
    for row, expected in zip(table(tmp_path / "npz"), found, strict=True):
        with np.load(tmp_path / "npz" / row["mask"]) as archive:
            np.testing.assert_array_equal(archive["mask"], expected)
    bag = BagSource(tmp_path / "bag" / "bags" / "a.mcap" / "masks_bag", topics=("/front/masks",))
    frames: list[Any] = list(bag.frames())
    card = Repository(MODELS).find(MODEL).card()
    resize = plan(card.resize, HEIGHT, WIDTH, card.height, card.width)
    assert len(frames) == len(found)
    for frame, row, expected in zip(frames, rows, found, strict=True):
        assert frame.stamp_ns == row["stamp_ns"]
        np.testing.assert_array_equal(frame.pixels, to_source(expected, resize, UNSEEN))
    bag.close()


def test_every_nth_frame_is_drawn_on_request(tmp_path: Path) -> None:
    """Somebody looks at a few pictures before the masks are trusted."""
    library, out = write_library(tmp_path / "library", bags=1, frames=5), tmp_path / "out"
    run(library, out, pictures=2)
    pictures = sorted((results_folder(out, "day/0.mcap") / "pictures" / "front_image_raw").iterdir())
    assert [path.name for path in pictures] == ["000000.jpg", "000002.jpg", "000004.jpg"]
    card = Repository(MODELS).find(MODEL).card()
    drawn: Any = cv2.imread(str(pictures[0]))
    assert drawn.shape == (card.height, card.width, 3)


@pytest.mark.parametrize("masks", ["png", "npz", "bag"])
def test_results_do_not_depend_on_the_number_of_processes(first_run: Path, tmp_path: Path, masks: str) -> None:
    """Byte for byte, also the table, so that two researchers can compare their hashes."""
    library, one = first_run / "library", first_run / "out"
    if masks != "png":
        one = tmp_path / "one"
        run(library, one, masks=masks)
    assert run(library, tmp_path / "two", processes=2, masks=masks).failed == {}
    assert contents(tmp_path / "two") == contents(one)


def test_a_full_disk_stops_the_batch_which_then_can_be_continued(finished: tuple[Path, Path], tmp_path: Path) -> None:
    """No bag is left half done, the reason is named once, and what was done before counts."""
    library, out = finished
    new = ["2.bag", "3.bag", "4.bag"]
    for number, name in enumerate(new, 2):
        write_bag(library / name, seed=number)
    with disk_of(4000):
        result = run(library, out)
    reasons = [result.failed[name] for name in new]
    assert sum("cannot be written" in reason for reason in reasons) == 1
    assert sum(reason.startswith("not done") for reason in reasons) == 2
    assert result.is_stopped
    assert sorted(result.finished) == ["1.bag", "day/0.mcap", "folder-2"]
    assert not (out / "frames.parquet").exists()
    assert sorted(path.name for path in out.glob("bags/*")) == ["1.bag", "day", "folder-2"]
    assert sorted(run(library, out).done) == new
    run(library, tmp_path / "expected")
    assert contents(out) == contents(tmp_path / "expected")


def test_two_batches_cannot_write_into_one_folder(tmp_path: Path) -> None:
    """A second one would delete what the first is writing."""
    library, out = write_library(tmp_path / "library", bags=1), tmp_path / "out"
    refused: list[str] = []

    def start_another(_: object) -> None:
        if not refused:
            with pytest.raises(BatchError, match="another batch writes") as caught:
                run(library, out)
            refused.append(str(caught.value))

    assert run(library, out, Watcher(start_another)).failed == {}
    assert refused


def test_a_model_that_does_not_segment_is_refused(tmp_path: Path) -> None:
    """The message says which model is needed."""
    library, out = write_library(tmp_path / "library", bags=1), tmp_path / "out"
    with pytest.raises(BatchError, match="give a model of segmentation"):
        run(library, out, model="car-tiny")
