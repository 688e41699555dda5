"""Helpers of the task tests: a manifest of each, and a frame that wants something."""

from typing import Any

from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, Resize, plan
from shared.imaging.labels import Labels
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.models.manifest import Manifest

HEIGHT, WIDTH = 40, 60
LABELS = ("car", "person", "bicycle")
_OUTPUTS: dict[str, dict[str, Any]] = {
    "segmentation": {"output": {"tensor": "o:0", "kind": "class_ids"}},
    "classification": {"output": {"tensor": "o:0", "kind": "logits"}},
    "detection": {
        "outputs": {"boxes": {"tensor": "b:0", "kind": "boxes"}, "scores": {"tensor": "s:0", "kind": "probabilities"}}
    },
    "tensors": {"outputs": {name: {"tensor": f"{name}:0", "kind": "tensor"} for name in ("depth", "flow")}},
}


def manifest(task: str, **changes: Any) -> Manifest:
    """A manifest of a model of 40×60 pixels and three classes."""
    fields = {
        "task": task,
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": "0" * 64,
        "input": {"tensor": "i:0", "height": HEIGHT, "width": WIDTH},
        "labels": [{"name": name, "colour": [i, 0, 0]} for i, name in enumerate(LABELS)],
    }
    return Manifest.model_validate(fields | _OUTPUTS[task] | changes)


def card(task: str) -> ModelCard:
    """The card of that model."""
    made = manifest(task)
    return ModelCard(
        "tiny", "1", made.sha256, task, HEIGHT, WIDTH, Layout.RGB8, Resize.CROP,
        Labels(LABELS, ((0, 0, 0), (1, 0, 0), (2, 0, 0))), trained=True,
        outputs=tuple(made.heads) if task == "tensors" else (),
    )  # fmt: skip


def message(want: RequestOptions = RequestOptions(), geometry: Geometry | None = None) -> FrameMessage:  # noqa: B008  Frozen.
    """A frame of the model's size, or resized as `geometry` says."""
    return FrameMessage(
        id=FrameId("car", "left", "s1", 7),
        model="tiny",
        layout=Layout.RGB8,
        shape=(HEIGHT, WIDTH, 3),
        codec="raw",
        geometry=geometry or plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
        stamp_ns=0,
        data=b"",
        options=want,
    )
