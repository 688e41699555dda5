"""The presenter that combines the newest result with the local model's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edge.presenting.flow import Motion
from edge.presenting.fuse import FusePresenter, LocalOutput, MaskPair, fused_detections, fused_mask
from edge.presenting.fusion_table import SCORES, FusionHeader, FusionTable, table_shape, write_fusion
from edge.presenting.presenter import ArrivedResult, Output, PresenterParts
from edge.presenting.warp import moved_mask
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.results import Detections
from shared.reuse.tuning import TunedModelSection
from shared.runlog.presented_log import OutputOrigin
from tests.edge.samples import CARD
from tests.support.moving_camera import HEIGHT, PERIOD_NS, WIDTH, MovingCamera

LABELS = Labels(tuple("abcde"), tuple((number, 0, 0) for number in range(5)))
REFERENCE = replace(CARD, labels=LABELS, height=HEIGHT, width=WIDTH)
LOCAL = replace(REFERENCE, name="local", sha256="1" * 64)
AGES_MS = (100.0, 200.0)
CAMERA = MovingCamera()
LOCAL_MASK: npt.NDArray[np.uint8] = np.full((HEIGHT, WIDTH), 4, np.uint8)


def header(task: str = "segmentation") -> FusionHeader:
    """Returns the header of a file for the two models."""
    reference, local = (TunedModelSection(name=each.name, sha256=each.sha256) for each in (REFERENCE, LOCAL))
    values = {"task": task, "reference": reference, "local": local, "labels": 5, "ages_ms": AGES_MS, "drives": ("one",)}
    return FusionHeader.model_validate({**values, "ticks": 1})


def mask_table() -> FusionTable:
    """Returns a table that trusts the reference model at 100 ms, and the local model at 200 ms."""
    classes = np.zeros(table_shape(2, 5), np.uint8)
    classes[0] = np.arange(5)[:, np.newaxis]
    classes[1] = np.arange(5)
    return FusionTable(header(), {"classes": classes})


@pytest.fixture
def parts(tmp_path: Path) -> PresenterParts:
    """Returns the parts of a presenter whose local model sees the same class everywhere."""
    write_fusion(tmp_path / "fusion.npz", mask_table())
    return PresenterParts(REFERENCE, lambda _: LocalOutput(LOCAL_MASK), tmp_path / "fusion.npz", LOCAL)


def test_without_a_remote_result_the_local_one_is_presented(parts: PresenterParts) -> None:
    """Before the first result, and through an outage."""
    output = FusePresenter(parts).present(CAMERA.tick(0, 0), None)
    assert output.origin is OutputOrigin.LOCAL
    np.testing.assert_array_equal(output.result, LOCAL_MASK)


def test_the_result_of_the_tick_itself_is_presented_as_it_is(parts: PresenterParts) -> None:
    """The reference model is better than both together."""
    mask = CAMERA.mask(0)
    output = FusePresenter(parts).present(CAMERA.tick(1, 0), ArrivedResult(1, PERIOD_NS, mask))
    assert output.origin is OutputOrigin.REMOTE
    assert output.result is mask


def test_both_results_are_combined_by_age_until_the_remote_one_is_too_old(parts: PresenterParts) -> None:
    """The table has a part for each age; above its last one, nothing was measured."""
    presenter = FusePresenter(parts)
    newest = ArrivedResult(0, 0, CAMERA.mask(0))
    presenter.present(CAMERA.tick(0, 0), None)
    young, old, too_old = (presenter.present(CAMERA.tick(number, 8 * number), newest) for number in (1, 2, 3))
    assert [each.origin for each in (young, old, too_old)] == [
        OutputOrigin.FUSED, OutputOrigin.FUSED, OutputOrigin.LOCAL
    ]  # fmt: skip
    assert np.mean(young.result[:, 8:-48] == CAMERA.mask(8)[:, 8:-48]) > 0.99
    np.testing.assert_array_equal(old.result, LOCAL_MASK)
    np.testing.assert_array_equal(too_old.result, LOCAL_MASK)


def test_without_the_local_model_the_result_is_moved(parts: PresenterParts) -> None:
    """A model that failed or is paused returns nothing."""
    presenter = FusePresenter(replace(parts, local=lambda _: None, local_problem=lambda: "local model: too slow"))
    assert presenter.present(CAMERA.tick(0, 0), None) == Output(OutputOrigin.NONE, reason="local model: too slow")
    output = presenter.present(CAMERA.tick(1, 8), ArrivedResult(0, 0, CAMERA.mask(0)))
    assert output.origin is OutputOrigin.WARPED


def test_a_remote_result_without_known_motion_is_left_out(parts: PresenterParts) -> None:
    """Its frame was before the presenter's first tick, so its place in the present image is unknown."""
    output = FusePresenter(parts).present(CAMERA.tick(5, 0), ArrivedResult(4, 4 * PERIOD_NS, CAMERA.mask(0)))
    assert (output.origin, output.flow) == (OutputOrigin.LOCAL, "none")


def test_the_local_models_probabilities_choose_the_part_of_the_table() -> None:
    """Where the local model is certain it is trusted; the margins of a letterbox stay as they are."""
    geometry = plan(Resize.LETTERBOX, 64, 96, 48, 96)
    assert geometry.paste_width < geometry.target_width
    classes = np.zeros(table_shape(2, 5), np.uint8)
    classes[...] = np.arange(5)[:, np.newaxis]
    classes[:, :, 3] = np.arange(5)  # The highest range of the local model's probabilities.
    table = FusionTable(header(), {"classes": classes})
    motion = _still_motion(geometry.paste_height, geometry.paste_width)
    remote = np.full((48, 96), 1, np.uint8)
    local = np.full((48, 96), 2, np.uint8)
    probabilities = np.zeros((6, 12, 5), np.uint8)
    probabilities[:, :6, 2], probabilities[:, 6:, 2] = 255, 100
    moved = moved_mask(remote, motion, geometry)
    fused = fused_mask(table, 0, MaskPair(moved, LocalOutput(local, probabilities), motion, geometry))
    left, right = geometry.paste_left, geometry.paste_left + geometry.paste_width
    assert (fused[:, :left] == 1).all()
    assert (fused[:, right:] == 1).all()
    assert (fused[:, left:44] == 2).all()
    assert (fused[:, 56:right] == 1).all()


def _still_motion(height: int, width: int) -> Motion:
    """Returns the motion of a camera that stands."""
    grey = np.full((height, width), 90, np.uint8)
    return Motion(np.zeros((height, width, 2), np.float32), grey, grey)


def _boxes(*rows: tuple[float, int, float]) -> Detections:
    """Returns boxes of 20 pixels: left edge, class, score."""
    corners = np.array([(x, 10, x + 20, 30) for x, _, _ in rows], np.float32).reshape(-1, 4)
    classes, scores = [row[1] for row in rows], [row[2] for row in rows]
    return Detections(corners, np.array(classes, np.uint16), np.array(scores, np.float32))


def test_of_two_boxes_of_an_object_the_more_reliable_one_stays() -> None:
    """Reliability depends on the model, the class and the age; boxes that only one model has stay too."""
    remote, local = np.full((2, 5, SCORES), 0.9, np.float32), np.full((5, SCORES), 0.6, np.float32)
    remote[1] = 0.3
    table = FusionTable(header("detection"), {"remote": remote, "local": local})
    moved, own = _boxes((10, 1, 0.5), (60, 2, 0.5)), _boxes((14, 1, 0.8), (100, 1, 0.5))
    young, old = (fused_detections(table, age, moved, own) for age in (0, 1))
    assert young.boxes[:, 0].tolist() == [10, 60, 100]
    assert young.scores.tolist() == pytest.approx([0.9, 0.9, 0.6])
    assert old.boxes[:, 0].tolist() == [14, 100, 60]
    nothing = fused_detections(table, 0, _boxes(), _boxes())
    assert nothing.boxes.shape == (0, 4)
