"""Replays of bags with two models, task by task."""

from pathlib import Path

import numpy as np
import pytest

from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings
from modelling.evaluation.evaluate import evaluate_model
from modelling.reuse.replay import Replay, replay
from modelling.reuse.search import Tuner
from modelling.reuse.tune import TuneSettings, tune
from rosbag_tools.writer import BagWriter
from shared.imaging.labels import Labels
from shared.inference.model import Model
from shared.reuse.gate import GateSettings
from shared.reuse.tuning import CascadeThresholds
from tests.modelling.reuse.parts import EMPTY, HEIGHT, VEHICLE, WIDTH, model_of, write_drive
from tests.support.stub_models import tensor_model

LEVELS = [EMPTY] * 4 + [VEHICLE] * 4 + [EMPTY] * 2 + [VEHICLE + 30] * 2


def _reference(task: str) -> Model:
    return model_of(task, lambda level: 0.98 if level > 100 else 0.02)


def _local(task: str) -> Model:
    """It does not recognise bright frames, and knows that."""
    return model_of(task, lambda level: 0.4 if level > 165 else 0.97 if level > 100 else 0.03, "local")


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three drives of the same camera in different light."""
    folder = tmp_path_factory.mktemp("drives")
    return [write_drive(folder / f"drive-{index}", LEVELS, light=index) for index in range(3)]


@pytest.fixture(scope="module", params=["classification", "segmentation", "detection"])
def task(request: pytest.FixtureRequest) -> str:
    """Each task that the reference model can have."""
    return str(request.param)


@pytest.fixture(scope="module")
def replayed(bags: list[Path], task: str) -> Replay:
    """The three drives."""
    return replay(bags, _reference(task), _local(task), EvaluationSettings())


def test_the_references_accuracy_is_that_of_evaluate(bags: list[Path], task: str, replayed: Replay) -> None:
    """The sampled pixels of a mask give the same mean IoU here."""
    tuner = Tuner(replayed.only("drive-0"))
    evaluated = evaluate_model(_reference(task), bags[0], EvaluationSettings()).accuracy
    assert evaluated is not None
    assert tuner.reference_accuracy == pytest.approx(100 * evaluated)
    assert tuner.reference_accuracy > 90


def test_a_reused_answer_is_scored_against_the_frames_own_truth(replayed: Replay) -> None:
    """A gate that never opens presents the first answer for all frames, and loses much."""
    tuner = Tuner(replayed)
    closed = tuner.outcomes(GateSettings("mse", 65_025, 100, 10_000), None)
    assert closed.sent == 3 / len(LEVELS) / 3
    assert closed.loss > 20
    exact = tuner.outcomes(GateSettings("mse", 1, 100, 10_000), None)
    assert exact.sent == pytest.approx(4 / len(LEVELS))
    assert exact.loss == pytest.approx(0)


def test_the_local_model_answers_where_it_is_sure(task: str, replayed: Replay) -> None:
    """Its errors are in the frames that it is not sure of, so tuning sends these."""
    local = _local(task)
    result = tune(replayed, _reference(task).card, local, TuneSettings(1.0, methods=("mse", "pixels")))
    tuning, measured = result.tuning, result.tuning.measured
    assert measured is not None
    assert tuning.local is not None
    assert tuning.gate is not None
    assert tuning.gate.pixels is not None
    assert measured.loss <= measured.loss_bound <= 1.0
    assert measured.drives == ("drive-0", "drive-1", "drive-2")
    assert measured.frames == 3 * len(LEVELS)
    assert measured.sent + measured.reused + measured.answered_locally == pytest.approx(1, abs=1e-3)
    # An uncertain box at the right place costs no average precision, so a detector may answer all frames.
    assert measured.sent == pytest.approx(0 if task == "detection" else 1 / len(LEVELS), abs=1e-3)
    assert sum(each.count for each in measured.reliability) > 0
    thresholds = CascadeThresholds(tuning.local.c_low, tuning.local.c_high)
    again = Tuner(replayed).outcomes(tuning.gate_settings("mse"), thresholds)
    assert again.loss == pytest.approx(measured.loss, abs=1e-3)


def test_the_reference_agrees_with_its_own_results(bags: list[Path], task: str) -> None:
    """Its errors count as right; a gate that never opens is as wrong as it is against the truth of an ideal model."""
    tuner = Tuner(replay(bags, _reference(task), _local(task), EvaluationSettings(compared_with="results")))
    assert tuner.reference_accuracy == pytest.approx(100)
    assert tuner.outcomes(GateSettings("mse", 65_025, 100, 10_000), None).loss > 20
    assert tuner.outcomes(GateSettings("mse", 1, 100, 10_000), None).loss == pytest.approx(0)


def test_labels_of_other_names_are_compared_by_name(tmp_path: Path) -> None:
    """The names in the bag decide, not the ids; a class that the truth lacks is wrong wherever it is predicted."""
    bag = write_drive(tmp_path / "drive", LEVELS, names=("Road", "CAR"))
    replayed = replay([bag], _reference("segmentation"), _local("segmentation"), EvaluationSettings())
    assert Tuner(replayed).reference_accuracy > 90
    assert "wrong wherever predicted, as the truth has no such class: none" in replayed.note
    swapped = write_drive(tmp_path / "swapped", LEVELS, names=("car", "road"))
    other = replay([swapped], _reference("segmentation"), None, EvaluationSettings())
    assert Tuner(other).reference_accuracy < 10
    with pytest.raises(EvaluationError, match=r"calibrates the confidence of local.*--reference results"):
        tune(replayed, _reference("segmentation").card, _local("segmentation"), TuneSettings(1.0))
    with pytest.raises(EvaluationError, match="labels of different classes"):
        replay([bag, swapped], _reference("segmentation"), None, EvaluationSettings())


def test_the_frames_of_each_bag_can_be_limited(bags: list[Path]) -> None:
    """The progress counts the frames of all bags."""
    seen: list[tuple[int, int | None]] = []
    settings = EvaluationSettings(frames=2, on_frame=lambda done, total: seen.append((done, total)))
    replayed = replay(bags, _reference("classification"), None, settings)
    assert len(replayed.frames) == 6
    assert seen == [(done, 6) for done in range(1, 7)]
    assert replayed.local_answers == []


def test_models_that_do_not_fit_are_refused(bags: list[Path]) -> None:
    """Before the first frame, with the names of both."""
    reference = _reference("classification")
    with pytest.raises(EvaluationError, match=r"task of the local model local \(detection\).*\(classification\)"):
        replay(bags, reference, _local("detection"), EvaluationSettings())
    others = Labels(("yes", "no"), ((0, 0, 0), (1, 1, 1)))
    other = model_of("classification", lambda _: 0.5, "local", labels=others)
    with pytest.raises(EvaluationError, match=r"labels of the local model local \(yes, no\)"):
        replay(bags, reference, other, EvaluationSettings())
    with pytest.raises(EvaluationError, match="choose a model with the labels no vehicle, vehicle"):
        replay(bags, other, None, EvaluationSettings())
    with pytest.raises(EvaluationError, match="task tensors"):
        replay(bags, tensor_model(), None, EvaluationSettings())


def test_a_segmentation_without_scores_cannot_be_local(bags: list[Path]) -> None:
    """Its manifest names no tensor for the confidence."""
    local = _local("segmentation")
    local.manifest = local.manifest.model_copy(update={"outputs": {"mask": local.manifest.heads["mask"]}})
    with pytest.raises(EvaluationError, match="add the key confidence"):
        replay(bags, _reference("segmentation"), local, EvaluationSettings())


def test_a_bag_counts_once(bags: list[Path], tmp_path: Path) -> None:
    """Also by another path. Drives are known by the names of their bags."""
    link, other = tmp_path / "link", tmp_path / "copy" / bags[0].name
    link.symlink_to(bags[0])
    other.mkdir(parents=True)
    for path, problem in ((bags[0], "is given twice"), (link, "is given twice"), (other, "same name")):
        with pytest.raises(EvaluationError, match=problem):
            replay([bags[0], path], _reference("classification"), None, EvaluationSettings())


def test_thresholds_that_cannot_be_found_are_an_error(bags: list[Path]) -> None:
    """Here presented answers would have to be better than the reference's."""
    reference = _reference("classification")
    replayed = replay(bags, reference, None, EvaluationSettings())
    with pytest.raises(EvaluationError, match=r"at most -5 points of accuracy.*--loss"):
        tune(replayed, reference.card, None, TuneSettings(-5.0))


def test_bags_without_objects_are_an_error(tmp_path: Path) -> None:
    """They have no average precision that could be lost."""
    reference = _reference("detection")
    replayed = replay([write_drive(tmp_path / "empty", [EMPTY] * 3)], reference, None, EvaluationSettings())
    with pytest.raises(EvaluationError, match="mAP is undefined"):
        tune(replayed, reference.card, None, TuneSettings(1.0))


def test_recordings_with_and_without_labels_are_not_mixed(bags: list[Path], tmp_path: Path) -> None:
    """The user chooses what they are compared with; labels that do not exist are an error."""
    reference, plain = _reference("classification"), tmp_path / "plain"
    with BagWriter(plain) as writer:
        writer.write_image("/cam/image_raw", np.full((HEIGHT, WIDTH), EMPTY, np.uint8), "mono8", 1, 1, "cam")
    with pytest.raises(EvaluationError, match="--reference results"):
        replay([bags[0], plain], reference, None, EvaluationSettings())
    with pytest.raises(EvaluationError, match="holds no true boxes"):
        replay([plain], reference, None, EvaluationSettings(compared_with="labels"))
    assert len(replay([bags[0], plain], reference, None, EvaluationSettings(compared_with="results")).frames) == 13


def test_a_map_is_for_true_masks(bags: list[Path], tmp_path: Path) -> None:
    """Neither a classifier nor a comparison with results has a use for it."""
    reference, file = _reference("classification"), tmp_path / "map.yaml"
    with pytest.raises(EvaluationError, match="--map is for true masks"):
        replay(bags, reference, None, EvaluationSettings(map_file=file))
    with pytest.raises(EvaluationError, match="leave it out"):
        replay(bags, reference, None, EvaluationSettings(map_file=file, compared_with="results"))
