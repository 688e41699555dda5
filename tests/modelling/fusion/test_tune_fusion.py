"""`skylane model tune-fusion` with models of the repository, and the choice of the classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edge.presenting.fuse import LocalOutput
from edge.presenting.fusion_table import fusion_for
from edge.presenting.presenter import Tick
from modelling.fusion.counts import choose
from modelling.fusion.recording import RecordedFrame, confirmed, labels_in_input
from modelling.model_cli import model
from rosbag_tools.writer import BagWriter
from shared.imaging.geometry import UNSEEN, Resize, plan
from shared.models.repository import Repository
from tests.support.local_models import write_segmentation
from tests.support.moving_camera import HEIGHT, PERIOD_NS, WIDTH, MovingCamera


def _write_drive(path: Path, seed: int, frames: int = 6, *, labels: bool = True, names: Sequence[str] = ()) -> Path:
    """Writes a bag of a camera that moves over grey areas whose class is that of the reference model."""
    camera = MovingCamera(seed)
    with BagWriter(path) as writer:
        for index in range(frames):
            grey = np.ascontiguousarray(camera.tick(index, 6 * index).image)
            stamp_ns = (1 + index) * PERIOD_NS
            writer.write_image("/cam/image_raw", grey, "rgb8", stamp_ns, stamp_ns, "cam")
            classes = np.rint(grey.mean(axis=-1) / 255 * 2).astype(np.uint8)
            if labels:
                writer.write_image("/cam/labels", classes, "mono8", stamp_ns, stamp_ns, "cam")
        if names:
            writer.write_label_info("/cam/label_info", names, stamp_ns=1, received_ns=1, frame_id="cam")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a reference model, a coarser local one, and one with other labels."""
    root = tmp_path_factory.mktemp("models")
    write_segmentation(root, "reference", HEIGHT, WIDTH, 3)
    write_segmentation(root, "small", HEIGHT // 8, WIDTH // 8, 3)
    write_segmentation(root, "other", HEIGHT // 8, WIDTH // 8, 2)
    return root


def _run(*words: Any) -> Result:
    return CliRunner().invoke(model, ["tune-fusion", *(str(each) for each in words)])


def test_the_file_is_for_both_models_and_judged_on_other_drives(root: Path, tmp_path: Path) -> None:
    """Ages that the camera's rate does not have are left out."""
    bags = [_write_drive(tmp_path / f"drive-{seed}", seed) for seed in (1, 2, 3)]
    out = tmp_path / "tuning" / "fusion.npz"
    names = ("--model", "reference", "--local-model", "small", "--models", root)
    ended = _run(*bags[:2], "--judge", bags[2], *names, "--every", 1, "--out", out)
    assert ended.exit_code == 0, ended.output
    repository = Repository(root)
    table = fusion_for(out, *(repository.find(name).card() for name in ("reference", "small")))
    assert table.header.ages_ms == (100.0, 200.0, 300.0, 400.0, 500.0)
    assert (table.header.drives, table.header.judged_on) == (("drive-1", "drive-2"), ("drive-3",))
    for each in table.header.judged:
        assert each.ceiling > 0.99
        assert each.hold < each.warp <= each.ceiling
        assert each.fuse > max(each.local, each.warp) - 0.01
    assert "margin" in ended.output


def test_without_labels_the_references_results_count_as_right(root: Path, tmp_path: Path) -> None:
    """Its own result is then the ceiling, and the numbers are called agreement."""
    bags = [_write_drive(tmp_path / f"drive-{seed}", seed, labels=False) for seed in (1, 2, 3)]
    out = tmp_path / "fusion.npz"
    names = ("--model", "reference", "--local-model", "small", "--models", root)
    ended = _run(*bags[:2], "--judge", bags[2], *names, "--every", 1, "--out", out)
    assert ended.exit_code == 0, ended.output
    header = fusion_for(out, *(Repository(root).find(name).card() for name in ("reference", "small"))).header
    assert header.compared_with == "results"
    assert {each.ceiling for each in header.judged} == {1.0}
    assert "agreement (mean IoU)" in " ".join(ended.output.split())


@pytest.mark.parametrize("names", [("class-0", "sky", "class-2"), ("grass", "sky", "sea")])
def test_labels_of_other_classes_are_refused(names: tuple[str, ...], root: Path, tmp_path: Path) -> None:
    """The table is indexed by the classes of the networks."""
    bag, out = _write_drive(tmp_path / "drive", 1, names=names), tmp_path / "fusion.npz"
    end = ("--model", "reference", "--local-model", "small", "--models", root, "--out", out)
    refused = _run(bag, *end)
    assert "--reference results" in str(refused.exception)
    assert "--map" not in str(refused.exception)
    assert not out.exists()
    ended = _run(bag, *end, "--reference", "results")
    assert ended.exit_code == 0, ended.output


def test_models_or_bags_that_do_not_fit_are_refused(root: Path, tmp_path: Path) -> None:
    """No file is written."""
    bag, out = _write_drive(tmp_path / "drive", 1, frames=1), tmp_path / "fusion.npz"
    small = ("--model", "reference", "--local-model", "small", "--models", root, "--out", out)
    refused = _run(bag, "--model", "reference", "--local-model", "other", "--models", root, "--out", out)
    assert "other labels" in str(refused.exception)
    assert "is given twice" in str(_run(bag, "--judge", bag, *small).exception)
    assert "no counted frame of these recordings (one in 3, see --every)" in str(_run(bag, *small).exception)
    assert not out.exists()


def test_a_cell_leaves_the_better_model_only_for_a_gain_on_most_drives() -> None:
    """One drive in which the other model happens to be right is no reason."""
    counts = np.zeros((6, 2, 3, 3, 3), np.int32)  # Drives, cells, remote, local, true class.
    for class_id in range(3):
        counts[:, :, class_id, class_id, class_id] = 1000
    counts[:, 0, 0, 1, 0] = 200  # The reference model is right where it says 0 and the local one 1.
    counts[:, 1, 0, 1, 1] = 150  # In another cell the local model is.
    counts[:, 0, 2, 1, 2] = 50
    counts[0, 0, 2, 1, 2], counts[0, 0, 2, 1, 1] = 0, 60
    classes = choose(counts, np.ones(3, bool))
    assert classes[0, 0, 1] == 0
    assert classes[1, 0, 1] == 1
    assert classes[0, 2, 1] == 2


def test_without_labels_the_moved_result_stays_unless_three_drives_agree() -> None:
    """The local model shares errors with the results that it is compared with."""

    def chosen(drives: int) -> int:
        counts = np.zeros((drives, 1, 2, 2, 2), np.int32)  # Drives, cells, remote, local, class of the reference.
        counts[:, 0, 0, 0, 0] = counts[:, 0, 1, 1, 1] = 1000
        counts[:, 0, 0, 1, 1] = 500  # Where the moved result says 0 and the local model 1, the latter agrees.
        return int(choose(counts, np.ones(2, bool), "results")[0, 0, 1])

    assert [chosen(drives) for drives in (1, 2, 3, 5)] == [0, 0, 1, 1]


def test_an_error_that_the_next_result_does_not_repeat_is_no_reference() -> None:
    """A pixel has a truth only where the next result, moved back, says the same; margins and the last frame have none."""
    geometry = plan(Resize.LETTERBOX, 32, 64, 64, 64)
    image = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    masks = [np.zeros((64, 64), np.uint8) for _ in range(3)]
    masks[1][30:34, 20:24] = 1  # Flickers.
    frames = [
        RecordedFrame(Tick(number, number * 10**8, image, geometry), None, mask, LocalOutput(mask))
        for number, mask in enumerate(masks)
    ]
    found = [frame.truth for frame in confirmed(frames)]
    for truth in found[:2]:
        assert (truth[30:34, 20:24] == UNSEEN).all()
        assert (truth[16:48, 40:] == 0).all()
        assert (truth[:16] == UNSEEN).all()
    assert (found[2] == UNSEEN).all()


def test_labels_follow_the_crop_of_the_image() -> None:
    """A true class belongs to the same place as the pixel of the model's input; padding has none."""
    class_ids = np.arange(32, dtype=np.uint8).reshape(4, 8)
    cropped = labels_in_input(class_ids, plan(Resize.CROP, 4, 8, 2, 2))
    assert cropped.tolist() == class_ids[::2, 2:6:2].tolist()
    padded = labels_in_input(class_ids, plan(Resize.LETTERBOX, 4, 8, 4, 4))
    assert padded[1:3].tolist() == class_ids[::2, ::2].tolist()
    assert (padded[[0, 3]] == UNSEEN).all()
