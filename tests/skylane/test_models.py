"""`skylane.Model`: any image in, class ids out, as a worker would answer it."""

from pathlib import Path

import numpy as np
import pytest

import skylane
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize, apply, plan
from shared.imaging.image_files import write_png
from shared.inference.model import Model
from tests.pipeline.rig import HEIGHT, WIDTH, direct, noise


def test_a_model_answers_an_image_of_its_size(models: Path, model: Model, tmp_path: Path) -> None:
    """The ids are those of the worker's model; the image may be an array or a file."""
    rgb = noise(1, (HEIGHT, WIDTH, 3))
    with skylane.Model("tiny", models=models) as loaded:
        np.testing.assert_array_equal(loaded.predict(rgb), direct(model, rgb))
        write_png(tmp_path / "street.png", rgb)
        np.testing.assert_array_equal(loaded.predict(tmp_path / "street.png"), direct(model, rgb))
        assert loaded.class_names == model.card.labels.names


def test_an_image_of_another_size_is_resized_as_the_card_says(models: Path, model: Model) -> None:
    """The mask has the size of the image, with 255 where the image was cropped off, or that of the model's input."""
    rgb = noise(2, (2 * HEIGHT, 3 * WIDTH, 3))
    resize = plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
    expected = direct(model, apply(rgb, resize))
    with skylane.Model("tiny", models=models) as loaded:
        np.testing.assert_array_equal(loaded.predict(rgb, mask_size="model"), expected)
        mask = loaded.predict(rgb)
    assert (mask.shape, mask.dtype) == (rgb.shape[:2], np.uint8)
    assert set(np.unique(mask)) == {*np.unique(expected).tolist(), 255}


def test_an_unknown_model_or_engine_is_refused(models: Path) -> None:
    """The nearest names are suggested."""
    with pytest.raises(SkylaneError, match="did you mean tiny"):
        skylane.Model("tinny", models=models)
    with pytest.raises(SkylaneError, match="no engine 'tensorflaw': did you mean tensorflow"):
        skylane.Model("tiny", models=models, engine="tensorflaw")
