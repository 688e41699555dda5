"""Building models: the repository's files, and equal labels in every format of a model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.models.loader import ModelLoader
from modelling.architectures.heads import SCORES
from modelling.architectures.weights import Weights, WeightsMismatchError, weights_in, weights_of
from modelling.building import BuildError, build, shipped_weights
from modelling.export import serving_function, write_keras
from modelling.frameworks import keras, tf
from modelling.recipes import Format, NetworkOutput, Recipe, recipe
from shared.imaging.labels import Labels, read_labels
from shared.inference.model import open_local
from shared.models.manifest import Placement
from shared.models.repository import Repository

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def labels() -> Labels:
    """The twelve classes of the drive."""
    return read_labels(ROOT / "configs/labels/street12.yaml")


@pytest.fixture(scope="module")
def small() -> Recipe:
    """road-tiny as a graph with a smaller input, whose width of 104 is not a multiple of 32."""
    forms = (Format.FROZEN_GRAPH, Format.SAVED_MODEL)
    return replace(recipe("road-tiny"), formats=forms, height=64, width=104)


@pytest.fixture(scope="module")
def weights(small: Recipe) -> Weights:
    """Random folded weights of road-tiny."""
    keras.utils.set_random_seed(7)
    return weights_of(small.network(folded=True))


@pytest.fixture(scope="module")
def repository(small: Recipe, weights: Weights, labels: Labels, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository with both formats of the small model."""
    root = tmp_path_factory.mktemp("models")
    build(small, root, labels, weights)
    return Repository(root)


def images(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns random images, uint8."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_frozen_graph_and_saved_model_give_the_labels_of_the_network(
    repository: Repository, small: Recipe, weights: Weights
) -> None:
    """The format must not change a mask."""
    network = small.network(folded=True)
    network.set_weights([weights[f"{layer.name}.{each.name}"] for layer in network.layers for each in layer.weights])
    direct = tf.function(serving_function(network, small.output, small.height, small.width), autograph=False)
    with (
        ModelLoader(repository, Placement(device="cpu")).open("road-tiny") as frozen,
        ModelLoader(repository, Placement(device="cpu")).open("road-tiny-saved-model") as saved,
    ):
        batch = images(0, (1, 64, 104, 3))
        expected = direct(batch)["prediction"].numpy()
        assert len(np.unique(expected)) > 1
        np.testing.assert_array_equal(frozen.predict(batch), expected)
        np.testing.assert_array_equal(saved.predict(batch), expected)


@pytest.mark.parametrize("form", [form for form in Format if form is not Format.TFLITE])
def test_a_model_with_another_name_and_any_batch_size_gives_the_same_labels(
    repository: Repository, small: Recipe, labels: Labels, tmp_path: Path, form: Format
) -> None:
    """Studies compare engines and batches with models that were built from another repository's weights."""
    (folder,) = build(small, tmp_path, labels, formats=[form], name="other", source=repository.root, free_batch=True)
    assert folder == tmp_path / "other"
    batch = np.concatenate([images(seed, (1, 64, 104, 3)) for seed in range(3)])
    with (
        ModelLoader(repository, Placement(device="cpu")).open("road-tiny") as shipped,
        ModelLoader(Repository(tmp_path), Placement(device="cpu"), max_batch=3).open("other") as built,
    ):
        assert (built.max_batch_size, built.manifest.format) == (3, form.value)
        expected = shipped.predict(batch)
        assert len(np.unique(expected)) > 1
        np.testing.assert_array_equal(built.predict(batch), expected)


_TINY = replace(recipe("road-tiny"), height=72, width=104)


@pytest.fixture(scope="module")
def tiny(labels: Labels, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The network of road-tiny, and a repository with its TensorFlow Lite file."""
    network, root = _TINY.network(folded=True), tmp_path_factory.mktemp("tiny")
    build(_TINY, root, labels, weights_of(network))
    return network, root


def test_a_tensorflow_lite_file_gives_the_masks_and_scores_of_the_network(tiny: tuple[Any, Path]) -> None:
    """A vehicle reads both: the mask is the result, and the scores show where the model is sure."""
    network, root = tiny
    stored = Repository(root).find("road-tiny")
    assert stored.manifest.precision == "fp16"
    assert stored.manifest.confidence is not None
    assert stored.manifest.confidence.tensor == "scores"
    with open_local(replace(stored, manifest=stored.manifest.with_confidence_head()), Placement(device="cpu")) as model:
        model.warm_up(1)
        image = images(4, (1, 72, 104, 3))
        outputs = model.infer(image)
        assert model.engine_name == "tflite"
    both = keras.Model(network.input, [network.output, network.get_layer(SCORES).output])
    whole, half = (each.numpy() for each in both(image.astype(np.float32) / 127.5 - 1))
    assert np.mean(outputs["mask"] == whole.argmax(axis=-1)) > 0.98
    confidence = outputs["confidence"]
    assert confidence.dtype == np.float32
    assert confidence.shape == (1, 9, 13, 12)
    np.testing.assert_allclose(confidence, half[:, 1::4, 1::4], atol=0.01 * np.abs(half).max())


def test_a_model_shipped_as_tensorflow_lite_is_copied(tiny: tuple[Any, Path], labels: Labels, tmp_path: Path) -> None:
    """Its file has no weights by name, so no other format can be made from it."""
    (_, shipped), copy = tiny, tmp_path / "copy"
    (folder,) = build(_TINY, copy, labels, source=shipped)
    assert (folder / "model.tflite").read_bytes() == (shipped / "road-tiny/model.tflite").read_bytes()
    assert Repository(copy).find("road-tiny").manifest.trained
    with pytest.raises(BuildError, match="tflite only"):
        build(_TINY, copy, labels, formats=[Format.FROZEN_GRAPH], source=shipped)
    with pytest.raises(BuildError, match="--weights-from"):
        build(_TINY, tmp_path / "empty", labels)
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("name", ["road-large", "street-lite"])
def test_a_keras_file_opens_without_custom_layers(tmp_path: Path, name: str) -> None:
    """The input size requires padding and cropping of the phases."""
    made = recipe(name)
    network = made.network(folded=True)
    write_keras(network, made.output, 72, 104, tmp_path / "model.keras")
    batch = images(3, (1, 72, 104, 3))
    if made.output is NetworkOutput.SCORES:
        batch = (batch / 255).astype(np.float32)
    (expected,) = serving_function(network, made.output, 72, 104)(batch).values()
    found = keras.models.load_model(tmp_path / "model.keras")(batch)
    if made.output is NetworkOutput.SCORES:
        expected, found = (np.argmax(scores, axis=-1) for scores in (expected, found))
    assert np.mean(np.equal(found, expected)) > 0.999  # Another order of sums may resolve near-ties differently.


def test_a_frozen_graph_has_the_documented_tensors(repository: Repository) -> None:
    """Other tools use these names."""
    graph = tf.compat.v1.GraphDef.FromString((repository.root / "road-tiny/model.pb").read_bytes())
    with tf.Graph().as_default() as loaded:
        tf.import_graph_def(graph, name="")
    image, ids = loaded.get_tensor_by_name("input:0"), loaded.get_tensor_by_name("prediction:0")
    assert (image.dtype, image.shape.as_list()) == (tf.uint8, [1, 64, 104, 3])
    assert (ids.dtype, ids.shape.as_list()) == (tf.uint8, [1, 64, 104])


def test_weights_are_read_from_the_frozen_graph(repository: Repository, weights: Weights) -> None:
    """The frozen graph is the only built-in file with weights; other formats are built from it."""
    graph = tf.compat.v1.GraphDef.FromString((repository.root / "road-tiny/model.pb").read_bytes())
    found = weights_in(graph)
    assert found.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(found[name], values)


def test_building_again_from_the_frozen_graph_gives_the_same_bytes(
    repository: Repository, small: Recipe, labels: Labels
) -> None:
    """The hash in the manifest and the file in version control stay the same."""
    before = (repository.root / "road-tiny/model.pb").read_bytes()
    build(small, repository.root, labels)
    assert (repository.root / "road-tiny/model.pb").read_bytes() == before


def test_an_untrained_model_is_marked_and_reproducible(labels: Labels, tmp_path: Path) -> None:
    """Its images are stamped, and its measurements can be repeated."""
    untrained = replace(recipe("car-tiny"), trained=False, formats=(Format.FROZEN_GRAPH,))
    first, second = (build(untrained, tmp_path / name, labels)[0] / "model.pb" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert not Repository(tmp_path / "a").find("car-tiny").manifest.trained


def test_score_models_have_twenty_classes_of_which_eight_are_unused(labels: Labels, tmp_path: Path) -> None:
    """The networks that they represent have twenty scores per pixel, which determine the cost."""
    scored = replace(recipe("street-lite"), architecture="road_tiny", height=64, width=128)
    build(scored, tmp_path, labels)
    repository = Repository(tmp_path)
    manifest = repository.find("street-lite").manifest
    assert (manifest.heads["mask"].kind, manifest.heads["mask"].tensor) == ("scores", "scores")
    assert manifest.input.dtype == "float32"
    assert manifest.input.scale == pytest.approx(1 / 255)
    names = repository.find("street-lite").card().labels.names
    assert names[:12] == labels.names
    assert names[12:] == tuple(f"unused-{number}" for number in range(12, 20))
    with ModelLoader(repository, Placement(device="cpu")).open("street-lite") as model:
        assert model.predict(images(2, (1, 64, 128, 3))).shape == (1, 64, 128)


def test_weights_of_another_network_are_refused(
    small: Recipe, weights: Weights, labels: Labels, tmp_path: Path
) -> None:
    """Weights with matching shapes would give meaningless outputs."""
    with pytest.raises(WeightsMismatchError, match="do not fit"):
        build(replace(small, architecture="road_large"), tmp_path, labels, weights)


def test_a_missing_or_invalid_built_in_graph_is_refused(small: Recipe, labels: Labels, tmp_path: Path) -> None:
    """The error says how to restore or train the weights."""
    with pytest.raises(BuildError, match="train the model again"):
        build(small, tmp_path, labels)
    (tmp_path / "road-tiny").mkdir()
    (tmp_path / "road-tiny/model.pb").write_bytes(b"not a graph at all")
    with pytest.raises(BuildError, match="train the model again"):
        shipped_weights(small, tmp_path)
