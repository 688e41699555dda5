"""Builds the models of `modelling.recipes` into a model repository."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.graphdef import read_graph
from modelling.architectures.weights import Weights, assign, weights_in
from modelling.export import (
    CONFIDENCE,
    INPUT,
    TENSORS,
    frozen_graph,
    write_keras,
    write_saved_model,
    write_tflite,
)
from modelling.frameworks import keras
from modelling.recipes import Format, NetworkOutput, Recipe
from rosbag_tools.drive.scene import CLASSES
from shared.errors import SkylaneError
from shared.files import tree_sha256, write_file
from shared.imaging.labels import Labels
from shared.inference.engine import EngineError
from shared.messages.model_card import SYNTHETIC_DRIVES
from shared.models.manifest import (
    MANIFEST_NAME,
    BatchingSection,
    DetectionSection,
    InputSection,
    LabelSection,
    Manifest,
    OutputKind,
    OutputSection,
    Precision,
)
from shared.models.repository import Repository

_TASKS = {
    NetworkOutput.PROBABILITIES: "classification",
    NetworkOutput.OBJECTS: "detection",
}  # Others are segmentations.
_KINDS = {
    NetworkOutput.CLASS_IDS: (OutputKind.CLASS_IDS,),
    NetworkOutput.SCORES: (OutputKind.SCORES,),
    NetworkOutput.PROBABILITIES: (OutputKind.PROBABILITIES,),
    NetworkOutput.OBJECTS: (OutputKind.BOXES, OutputKind.PROBABILITIES),
}

FILES = {
    Format.FROZEN_GRAPH: "model.pb",
    Format.SAVED_MODEL: "saved_model",
    Format.KERAS: "model.keras",
    Format.TFLITE: "model.tflite",
}


class BuildError(SkylaneError):
    """A model cannot be built."""


def build(
    recipe: Recipe,
    root: Path,
    labels: Labels,
    weights: Weights | None = None,
    formats: Sequence[Format] | None = None,
    *,
    name: str | None = None,
    source: Path | None = None,
    free_batch: bool = False,
) -> list[Path]:
    """Builds a recipe into a repository, replacing existing models; returns the models' folders.

    Args:
        recipe: The recipe.
        root: The repository to write to.
        labels: The names and colours of the twelve classes of the drive.
        weights: Folded weights from a training. Without them, a trained recipe uses its built-in weights, or a copy of its
            built-in file, and an untrained one random weights.
        formats: The formats to write; all formats of the recipe by default.
        name: The model's name, if one format is built.
        source: The repository with the built-in weights; `root` by default.
        free_batch: Accept any batch size instead of 1. A Keras file always does, and a TensorFlow Lite file never.

    Raises:
        BuildError: the built-in weights are missing, the recipe has no such format, or the folder cannot be written.
        WeightsMismatchError: the weights belong to another network.
    """
    chosen = formats or recipe.formats
    if Format.KERAS in chosen and recipe.output in _TASKS:
        raise BuildError(f"{recipe.name} is not written as a Keras file: choose frozen_graph or saved_model")
    is_copy = weights is None and recipe.trained and not recipe.keeps_weights and tuple(chosen) == recipe.formats
    copied = _built_in_file(recipe, source or root) if is_copy else None
    network = None if is_copy else _with_weights(recipe, source or root, weights)
    batch = None if free_batch or recipe.largest_batch > 1 else 1
    trained = recipe.trained or weights is not None
    folders = []
    for form in chosen:
        folder = root / (name or recipe.folder_name(form))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if copied is None:
                _write(network, recipe, form, folder / FILES[form], batch=batch)
            elif copied.resolve() != (folder / FILES[form]).resolve():
                write_file(folder / FILES[form], copied.read_bytes())
            manifest = _manifest(recipe, form, folder / FILES[form], labels, trained=trained)
            write_file(folder / MANIFEST_NAME, manifest.to_yaml())
        except OSError as error:
            raise BuildError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error
        folders.append(folder)
    return folders


def shipped_weights(recipe: Recipe, root: Path) -> Weights:
    """Returns the folded weights in the built-in frozen graph of a trained recipe, or of the one whose weights it uses.

    Raises:
        BuildError: the recipe has no such graph, it is missing, or was not written by Skylane.
    """
    if not recipe.keeps_weights:
        (form,) = recipe.formats
        raise BuildError(
            f"{recipe.name} is shipped as {form} only, which another format is not made from: leave --format out, or train "
            f"it again: `python -m training {recipe.name} --format FORMAT` in a checkout"
        )
    path = _built_in(recipe, root)
    try:
        graph = read_graph(path)
    except EngineError as error:
        raise BuildError(f"no weights for {recipe.name}: {error}; {_REMEDY}") from error
    weights = weights_in(graph)
    if not weights:
        raise BuildError(f"{path} was not written by Skylane and holds no named weights; {_REMEDY}")
    return weights


def _built_in(recipe: Recipe, root: Path) -> Path:
    name = recipe.weights_of or recipe.name
    return Repository(root).root_of(name) / name / FILES[recipe.formats[0]]


def _built_in_file(recipe: Recipe, root: Path) -> Path:
    path = _built_in(recipe, root)
    if not path.is_file():
        raise BuildError(f"no built-in file of {recipe.name}: {path} is missing; {_REMEDY}")
    return path


_REMEDY = (
    "name its repository by --weights-from, restore the file from git's history, or train the model again: "
    "`python -m training` in a checkout"
)


def _with_weights(recipe: Recipe, root: Path, weights: Weights | None) -> Any:
    if weights is None and recipe.trained:
        weights = shipped_weights(recipe, root)
    keras.utils.set_random_seed(recipe.seed)
    network = recipe.network(folded=True)
    if weights is not None:
        assign(network, weights, recipe.name)
    return network


def _write(network: Any, recipe: Recipe, form: Format, path: Path, *, batch: int | None) -> None:
    shape = network, recipe.output, recipe.height, recipe.width
    match form:
        case Format.SAVED_MODEL:
            if path.exists():
                shutil.rmtree(path)
            write_saved_model(*shape, path, batch=batch)
        case Format.KERAS:
            write_keras(*shape, path)
        case Format.TFLITE:
            write_tflite(*shape, path)
        case Format.FROZEN_GRAPH:
            write_file(path, frozen_graph(*shape, batch=batch).SerializeToString(deterministic=True))


def _manifest(recipe: Recipe, form: Format, path: Path, labels: Labels, *, trained: bool) -> Manifest:
    suffix = ":0" if form is Format.FROZEN_GRAPH else ""  # The name of a graph's tensor, or a signature's key.
    scores = recipe.output is NetworkOutput.SCORES
    heads = {
        name: OutputSection(tensor=name + suffix, kind=kind)
        for name, kind in zip(TENSORS[recipe.output], _KINDS[recipe.output], strict=True)
    }
    confidence = OutputSection(tensor=CONFIDENCE, kind=OutputKind.SCORES)
    return Manifest(
        name=path.parent.name,
        description=recipe.description,
        task=_TASKS.get(recipe.output, "segmentation"),
        trained=trained,
        trained_on=SYNTHETIC_DRIVES if trained else "",
        format=form.value,
        file=path.name,
        sha256=tree_sha256(path),
        precision=Precision.FP16 if form is Format.TFLITE else Precision.FP32,
        input=InputSection(
            tensor=INPUT + suffix,
            dtype="float32" if scores else "uint8",
            height=recipe.height,
            width=recipe.width,
            scale=1 / 255 if scores else 1.0,
        ),
        confidence=confidence if form is Format.TFLITE and recipe.output is NetworkOutput.CLASS_IDS else None,
        output=None if len(heads) > 1 else next(iter(heads.values())),
        outputs=heads if len(heads) > 1 else {},
        detection=DetectionSection(score_threshold=recipe.score_threshold),
        labels=_labels(recipe, labels),
        batching=BatchingSection(max_size=1 if form is Format.TFLITE else recipe.largest_batch),
    )


def _labels(recipe: Recipe, labels: Labels) -> tuple[LabelSection, ...]:
    """Returns the recipe's classes with their colours; unused ones are black."""
    if recipe.colours:
        pairs = zip(recipe.class_names, recipe.colours, strict=True)
        return tuple(LabelSection(name=name, colour=colour) for name, colour in pairs)
    colours = dict(zip(labels.names, labels.colours, strict=True))
    for name in CLASSES:
        if name not in colours:
            raise BuildError(f"the labels have no {name!r}: use the set street12")
    return tuple(LabelSection(name=name, colour=colours.get(name, (0, 0, 0))) for name in recipe.class_names)
