from pathlib import Path

import numpy as np
import pytest

from modelling.inspection import image_run
from modelling.tables import result_table
from shared.imaging.image_files import read_image_file
from shared.messages.results import Classification, Detections, Tensors
from tests.support.stub_models import HEIGHT, WIDTH, classifier, detector, tensor_model

IMAGE = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)


def test_a_detectors_boxes_are_in_pixels_of_the_original_image(tmp_path: Path) -> None:
    """The overlay has the original size, not that of the model's input."""
    run = image_run.run(detector(), IMAGE)
    assert isinstance(run.result, Detections)
    np.testing.assert_allclose(run.result.boxes, [[20, 30, 60, 60]], atol=1e-3)
    (path,) = image_run.write(run, IMAGE, tmp_path, "street")
    assert path.name == "street_overlay.png"
    overlay = read_image_file(path)
    assert overlay.shape == IMAGE.shape
    assert overlay[60, 40].tolist() == [255, 0, 0]
    assert result_table(run.result, run.card).row_count == 1


def test_a_classifiers_result_is_the_best_classes(tmp_path: Path) -> None:
    """The manifest's `top_k` limits their number; the best one comes first."""
    run = image_run.run(classifier(), IMAGE)
    assert isinstance(run.result, Classification)
    assert run.result.class_ids == (1, 2)
    assert run.result.scores == pytest.approx((0.7, 0.2))
    assert [path.name for path in image_run.write(run, IMAGE, tmp_path, "street")] == ["street_overlay.png"]
    assert result_table(run.result, run.card).row_count == 2


def test_raw_tensors_are_saved_unchanged(tmp_path: Path) -> None:
    """Raw tensors have no overlay."""
    run = image_run.run(tensor_model(), IMAGE)
    assert isinstance(run.result, Tensors)
    (path,) = image_run.write(run, IMAGE, tmp_path / "out", "street")
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["features"], [0, 1, 2])
    assert result_table(run.result, run.card).row_count == 1
