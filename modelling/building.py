"""Building the models of `modelling.recipes` into a model repository."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.models.manifest import (
    MANIFEST_NAME,
    BatchingSection,
    DetectionSection,
    InputSection,
    LabelSection,
    Manifest,
    OutputKind,
    OutputSection,
)
from cloud.models.repository import Repository
from modelling.export.keras_export import write_keras
from modelling.export.tensorflow_export import INPUT, TENSORS, frozen_graph, write_saved_model
from modelling.frameworks import keras
from modelling.recipes import Format, Output, Recipe
from modelling.training.weights import Weights, assign, weights_in
from rosbag_tools.drive.scene import CLASSES
from shared.errors import SkylaneError
from shared.hashing import tree_sha256
from shared.imaging.labels import Labels
from shared.messages.model_card import Task

_TASKS = {Output.PROBABILITIES: Task.CLASSIFICATION, Output.OBJECTS: Task.DETECTION}  # Else segmentation.
_KINDS = {
    Output.CLASS_IDS: (OutputKind.CLASS_IDS,),
    Output.SCORES: (OutputKind.SCORES,),
    Output.PROBABILITIES: (OutputKind.PROBABILITIES,),
    Output.OBJECTS: (OutputKind.BOXES, OutputKind.PROBABILITIES),
}

FILES = {Format.FROZEN_GRAPH: "model.pb", Format.SAVED_MODEL: "saved_model", Format.KERAS: "model.keras"}


class BuildError(SkylaneError):
    """A model that cannot be built."""


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
    """Build a recipe into the repository `root`, in the given formats or all of its own; returns the models' folders.

    `labels`: those of the twelve classes. `weights`: folded ones, just trained. Without, a trained recipe takes them
    out of the frozen graph that ships in the repository `source` (where none is given, in `root`), and an untrained one
    draws them from its seed. `name`: the model's, where a single format is built. `free_batch`: any number of pictures
    may go through it at once, instead of one, as always through a Keras file. What was built before is replaced.

    Raises:
        BuildError: the recipe's weights ship but are not there, it has no such format, or the folder cannot be written.
        WeightsMismatchError: the weights are another network's.
    """
    chosen = formats or recipe.formats
    if Format.KERAS in chosen and recipe.output in _TASKS:
        raise BuildError(f"{recipe.name} is not written as a Keras file: choose frozen_graph or saved_model")
    network = _with_weights(recipe, source or root, weights)
    batch = None if free_batch or recipe.largest_batch > 1 else 1
    trained = recipe.trained or weights is not None
    folders = []
    for each in chosen:
        folder = root / (name or recipe.folder_name(each))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(network, recipe, each, folder / FILES[each], batch=batch)
            manifest = _manifest(recipe, each, folder / FILES[each], labels, trained=trained)
            (folder / MANIFEST_NAME).write_text(manifest.to_yaml(), encoding="utf-8")
        except OSError as error:
            raise BuildError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error
        folders.append(folder)
    return folders


def shipped_weights(recipe: Recipe, root: Path) -> Weights:
    """The folded weights in the frozen graph of a trained recipe.

    Raises:
        BuildError: the graph is not there, or is none that was built here.
    """
    path = Repository(root).root_of(recipe.name) / recipe.name / FILES[Format.FROZEN_GRAPH]
    try:
        graph = read_graph(path)
    except EngineError as error:
        raise BuildError(f"no weights for {recipe.name}: {error}; {_MEND}") from error
    weights = weights_in(graph)
    if not weights:
        raise BuildError(f"{path} was not built here and holds no named weights; {_MEND}")
    return weights


_MEND = "get the file back from the repository's history, or train anew with --train"


def _with_weights(recipe: Recipe, root: Path, weights: Weights | None) -> Any:
    if weights is None and recipe.trained:
        weights = shipped_weights(recipe, root)
    keras.utils.set_random_seed(recipe.seed)
    network = recipe.network(folded=True)
    if weights is not None:
        assign(network, weights, recipe.name)
    return network


def _write(network: Any, recipe: Recipe, form: Format, path: Path, *, batch: int | None) -> None:
    if form is Format.SAVED_MODEL:
        if path.exists():
            shutil.rmtree(path)
        write_saved_model(network, recipe.output, recipe.height, recipe.width, path, batch=batch)
        return
    if form is Format.KERAS:
        write_keras(network, recipe.output, recipe.height, recipe.width, path)
        return
    graph = frozen_graph(network, recipe.output, recipe.height, recipe.width, batch=batch)
    partial = path.with_suffix(".partial")
    partial.write_bytes(graph.SerializeToString(deterministic=True))
    partial.replace(path)


def _manifest(recipe: Recipe, form: Format, path: Path, labels: Labels, *, trained: bool) -> Manifest:
    port = ":0" if form is Format.FROZEN_GRAPH else ""  # A graph's tensor, or a signature's key.
    scores = recipe.output is Output.SCORES
    heads = {
        name: OutputSection(tensor=name + port, kind=kind)
        for name, kind in zip(TENSORS[recipe.output], _KINDS[recipe.output], strict=True)
    }
    return Manifest(
        name=path.parent.name,
        description=recipe.description,
        task=_TASKS.get(recipe.output, Task.SEGMENTATION),
        trained=trained,
        format=form.value,
        file=path.name,
        sha256=tree_sha256(path),
        input=InputSection(
            tensor=INPUT + port,
            dtype="float32" if scores else "uint8",
            height=recipe.height,
            width=recipe.width,
            scale=1 / 255 if scores else 1.0,
        ),
        output=None if len(heads) > 1 else next(iter(heads.values())),
        outputs=heads if len(heads) > 1 else {},
        detection=DetectionSection(score_threshold=recipe.score_threshold),
        labels=_labels(recipe, labels),
        batching=BatchingSection(max_size=recipe.largest_batch),
    )


def _labels(recipe: Recipe, labels: Labels) -> tuple[LabelSection, ...]:
    """The recipe's classes with their colours; the unused ones are black."""
    if recipe.colours:
        pairs = zip(recipe.class_names, recipe.colours, strict=True)
        return tuple(LabelSection(name=name, colour=colour) for name, colour in pairs)
    colours = dict(zip(labels.names, labels.colours, strict=True))
    for name in CLASSES:
        if name not in colours:
            raise BuildError(f"the labels have no {name!r}: take configs/labels/street12.yaml")
    return tuple(LabelSection(name=name, colour=colours.get(name, (0, 0, 0))) for name in recipe.class_names)
