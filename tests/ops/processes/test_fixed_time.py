import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.processes.fixed_time import FixedTimeEngine, KnownAnswers, known_answers_file
from ops.processes.playback import PlaybackSettings, model_inputs
from rosbag_tools.drive.recording import DrivePlan, record
from shared.imaging.geometry import Resize
from shared.inference.engine import Outputs
from tests.support.stub_models import HEIGHT, WIDTH, classifier

IMAGES = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, HEIGHT // 2, WIDTH // 2, 3), np.uint8)


def test_answers_survive_a_file(tmp_path: Path) -> None:
    """A worker in another process reads the answers of several drives."""
    for name, images in {"one": IMAGES[:1], "two": IMAGES[1:2]}.items():
        KnownAnswers.compute(classifier(), images).write(tmp_path / f"{name}.npz")
    read = KnownAnswers.read((tmp_path / "one.npz", tmp_path / "two.npz"))
    assert len(read) == 2
    for image in IMAGES[:2]:
        known = read.of(image)
        assert known is not None
        np.testing.assert_allclose(known["scores"], (0.1, 0.7, 0.2))
    assert read.of(IMAGES[2]) is None


def test_the_engine_takes_its_time_for_each_image() -> None:
    """Two images in one batch take twice as long, and unknown ones get the model's own answer."""
    opened = []

    def open_model() -> object:
        opened.append(classifier())
        return opened[-1]

    engine = FixedTimeEngine(KnownAnswers.compute(classifier(), IMAGES[:1]), 50, open_model)  # type: ignore[arg-type]

    def infer(images: np.ndarray) -> tuple[Outputs, float]:
        begin_s = time.monotonic()
        return engine.infer(images), time.monotonic() - begin_s

    known, took_s = infer(IMAGES[:1])
    assert not opened
    assert took_s >= 0.05
    both, took_s = infer(IMAGES[:2])
    assert took_s >= 0.1
    engine.infer(IMAGES[1:2])
    assert len(opened) == 1
    np.testing.assert_array_equal(both["scores"][0], known["scores"][0])
    assert both["scores"].shape == (2, 3)


@pytest.mark.parametrize(("codec", "resize_at"), [("raw", "edge"), ("jpeg", "edge"), ("raw", "cloud")])
def test_the_answers_of_a_bag_are_those_of_its_images(codec: str, resize_at: str, tmp_path: Path) -> None:
    """The images are the vehicle's, after the codec, and of the model's size; a second call reads the file."""
    bag = tmp_path / "drive"
    record(bag, DrivePlan(seed=1, frames=2, width=WIDTH, height=HEIGHT - 20))
    model, settings = classifier(), PlaybackSettings(bag, tmp_path, "stub", codec, frames=2, resize_at=resize_at)
    counts: list[int] = []
    file = known_answers_file(settings, model, tmp_path / "answers", counts.append)
    assert counts == [1, 2]
    read = KnownAnswers.read([file])
    images = model_inputs(settings, model)
    assert {image.shape for image in images} == {(HEIGHT // 2, WIDTH // 2, 3)}
    assert all(read.of(image) is not None for image in images)
    assert known_answers_file(settings, model, tmp_path / "answers", counts.append) == file
    assert counts == [1, 2]


@pytest.mark.parametrize(
    "other", [{"quality": 20}, {"resize": Resize.STRETCH}, {"resize_at": "cloud"}, {"bag": Path("other/drive")}]
)
def test_answers_are_computed_for_each_bag_and_encoding(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of another quality, resize or bag of the same name are other images, also in the same folder."""
    monkeypatch.chdir(tmp_path)
    for seed, folder in enumerate((".", "other"), 1):
        record(Path(folder, "drive"), DrivePlan(seed=seed, frames=2, width=2 * WIDTH, height=3 * HEIGHT))
    model, settings = classifier(), PlaybackSettings(Path("drive"), tmp_path, "stub", frames=2)
    for each in (settings, replace(settings, **other)):
        read = KnownAnswers.read([known_answers_file(each, model, tmp_path / "answers")])
        assert all(read.of(image) is not None for image in model_inputs(each, model))
