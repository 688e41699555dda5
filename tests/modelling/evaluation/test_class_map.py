from pathlib import Path

import numpy as np
import pytest

from modelling.evaluation.bag_images import EvaluationError
from modelling.evaluation.class_map import class_map
from shared.config import ConfigError
from shared.imaging.labels import label_sets, read_labels
from shared.package_data import shipped

NETWORK = ("road", "car", "truck", "rider")
TRUTH = ("vehicle", "road", "dog")


def written(folder: Path, text: str) -> Path:
    """Writes a map file."""
    path = folder / "map.yaml"
    path.write_text(text)
    return path


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Returns class ids as a mask."""
    return np.array(values, np.uint8)


def names_of(label_set: str) -> tuple[str, ...]:
    """Returns the names of a shipped label set."""
    return read_labels(label_sets()[label_set]).names


def test_without_names_of_the_truth_the_ids_are_those_of_the_network() -> None:
    """Bags of earlier versions do not name their labels."""
    found = class_map(NETWORK, None)
    assert (found.names, found.is_identity, found.describe()) == (NETWORK, True, "")
    assert found.of_truth(ids(0, 3, 4, 255)).tolist() == [0, 3, 255, 255]
    assert found.of_network(ids(0, 3, 255)).tolist() == [0, 3, 255]


def test_several_classes_of_the_network_may_be_one_of_the_truth(tmp_path: Path) -> None:
    """What has no counterpart is ignored in the truth, and wrong where predicted."""
    found = class_map(NETWORK, TRUTH, written(tmp_path, "car: vehicle\ntruck: vehicle\n"))
    assert found.names == ("vehicle", "road", "none")
    assert found.of_truth(ids(0, 1, 2, 255)).tolist() == [0, 1, 255, 255], "the network has no dogs"
    assert found.of_network(ids(0, 1, 2, 3, 255)).tolist() == [1, 0, 0, 2, 255], "no rider is ever right"
    assert (found.ignored, found.unmatched) == (("dog",), ("rider",))
    assert "not scored, as the network has no such class: dog" in found.describe()
    assert "wrong wherever predicted, as the truth has no such class: rider" in found.describe()


@pytest.mark.parametrize(
    ("network", "truth", "true_ids", "predicted_ids"),
    [
        (("Traffic-Light", "road"), ("road", "traffic_light"), [0, 1], [1, 0]),  # Spelt in another way.
        (("road", "car"), ("", "road", "", "car"), [255, 0, 255, 1], [0, 1]),  # Gaps between the ids of the truth.
        (("none", "road", "train"), ("road", "none"), [0, 1], [1, 0, 2]),  # No train is right where the truth is none.
        (("road", "train"), ("road", "none", "sky"), [0, 255, 255], [0, 1]),  # A true none without a counterpart.
    ],
)
def test_names_decide_which_ids_are_compared(
    network: tuple[str, ...], truth: tuple[str, ...], true_ids: list[int], predicted_ids: list[int]
) -> None:
    """What is wrong wherever predicted has the name `none`, which the truth may have as a class like any other."""
    found = class_map(network, truth)
    assert found.of_truth(ids(*range(len(truth)))).tolist() == true_ids
    assert found.of_network(ids(*range(len(network)))).tolist() == predicted_ids
    assert not found.is_identity, "the ids differ"


def test_a_map_file_overrules_equal_names(tmp_path: Path) -> None:
    """An empty value takes the counterpart away; then the same classes are no identity."""
    found = class_map(("road", "car"), ("road", "car"), written(tmp_path, "car: road\nroad:\n"))
    assert found.names == ("road", "none")
    assert found.of_network(ids(0, 1)).tolist() == [1, 0]
    assert not found.is_identity
    assert "wrong wherever predicted" in found.describe()


def test_a_known_pair_of_label_sets_needs_no_file() -> None:
    """Maps of known pairs ship."""
    found = class_map(names_of("cityscapes"), names_of("camvid"))
    assert found.names == names_of("camvid")
    assert found.counterparts["rider"] == "bicyclist"
    assert (found.ignored, found.unmatched) == ((), ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cat: road", "the network has no class 'cat'"),
        ("cra: road", "did you mean car?"),
        ("car: raod", "the truth has no class 'raod': did you mean road?"),
        ("car: [road]", "the truth has no class"),
        ("1: road", "the network has no class '1'"),
    ],
)
def test_an_unknown_name_in_a_map_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A misspelt pair would leave a class out in silence."""
    path = written(tmp_path, text)
    with pytest.raises(EvaluationError) as refused:
        class_map(NETWORK, TRUTH, path)
    assert problem in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("text", ["", "# car: vehicle\n", "{}"])
def test_an_empty_map_file_is_refused(tmp_path: Path, text: str) -> None:
    """It would switch off the shipped map in silence."""
    with pytest.raises(EvaluationError, match="is empty: write lines of the form"):
        class_map(NETWORK, TRUTH, written(tmp_path, text))


def test_ids_of_the_network_keep_names_that_differ_in_spelling_only() -> None:
    """Without names of the truth, nothing is compared by name."""
    found = class_map(("road", "Road"), None)
    assert (found.names, found.is_identity, found.to_json()) == (("road", "Road"), True, {})


def test_the_share_of_the_ignored_pixels_is_part_of_the_sentence(tmp_path: Path) -> None:
    """A reader must see how much of the truth was left out."""
    found = class_map(NETWORK, TRUTH, written(tmp_path, "car: vehicle"))
    assert "has no such class: dog (12.5 % of the labelled pixels)" in found.describe(0.125)
    unnamed = class_map(("car", "road"), ("road", "car")).describe(0.25)
    assert "not scored: labels whose ids have no name (25.0 % of the labelled pixels)" in unnamed
    assert found.to_json() == {
        "classes": {"compared": ["vehicle", "road"], "ignored": ["dog"], "always_wrong": ["truck", "rider"]}
    }


def test_every_shipped_map_names_classes_of_its_label_sets() -> None:
    """A map with a name that no set has would fail for its users only."""
    for path in sorted((shipped("configs") / "maps").glob("*.yaml")):
        network, _, truth = path.stem.partition("-to-")
        found = class_map(names_of(network), names_of(truth))
        assert found == class_map(names_of(network), names_of(truth), path)
        assert len(found.compared) > 1


@pytest.mark.parametrize("text", ["- car", "car: road: x", "car: road\ncar: dog"])
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, text: str) -> None:
    """The message is that of all configuration files."""
    with pytest.raises(ConfigError):
        class_map(NETWORK, TRUTH, written(tmp_path, text))


def test_a_truth_that_shares_nothing_is_refused() -> None:
    """An accuracy of 0 would look like a bad network."""
    with pytest.raises(
        EvaluationError, match=r"no class of the network \(road\) is one of the truth \(cat\): give the"
    ):
        class_map(["road"], ["cat", ""])
