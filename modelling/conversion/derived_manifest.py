"""The manifest of a model that was made from another one."""

from collections.abc import Mapping
from typing import Any

from cloud.engines.engine import Precision
from cloud.models.manifest import Manifest, OutputKind
from shared.imaging.labels import Labels
from shared.messages.model_card import Task

_FINISHED = {"mask": OutputKind.CLASS_IDS, "scores": OutputKind.PROBABILITIES, "boxes": OutputKind.BOXES}
_OF_THE_SOURCE = {"labels_file", "engine", "agreement", "signature"}  # Which the new model has none of, or its own.


def finished(source: Manifest, picture: str, tensors: Mapping[str, str], *, batch_size: int | None) -> dict[str, Any]:
    """The part of a manifest about a file that takes the camera's pixels and gives what `Engine.infer` does.

    `picture`: its input's name. `tensors`: its outputs' names by head. `batch_size`: what is baked in, None for any.
    """
    section = source.input.model_dump(include={"height", "width", "layout", "resize"}, mode="json")
    heads = {
        head: {"tensor": tensor, "kind": OutputKind.TENSOR if source.task is Task.TENSORS else _FINISHED[head]}
        for head, tensor in tensors.items()
    }
    part: dict[str, Any] = {"input": {**section, "tensor": picture, "dtype": "uint8"}, "box_format": {}}
    part |= {"output": next(iter(heads.values()))} if source.output else {"outputs": heads}
    return part if batch_size is None else part | {"batching": {"max_size": batch_size}}


def derived(source: Manifest, labels: Labels | None, changes: Mapping[str, Any]) -> Manifest:
    """The manifest of a model made from `source`, with `changes`; its labels are written out."""
    document = source.model_dump(mode="json", exclude_none=True, exclude=_OF_THE_SOURCE) | dict(changes)
    if labels is not None:
        named = zip(labels.names, labels.colours, strict=True)
        document["labels"] = [{"name": name, "colour": colour} for name, colour in named]
    return Manifest.model_validate(document)


def made_in(source: Manifest, name: str, made: str, precision: Precision) -> str:
    """The description of a model: the source's, and what was made of it."""
    how = made if precision is Precision.FP32 else f"{made}, {precision}"
    return f"{source.description} ({name} as {how})".strip()
