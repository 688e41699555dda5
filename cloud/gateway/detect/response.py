"""What /api/detect answers: a result in words and numbers, for people and scripts."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from shared.imaging import geometry, mask_codecs
from shared.imaging.geometry import UNSEEN, Geometry
from shared.imaging.mask_codecs import Mask
from shared.messages.frame import ResultMessage
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Classification, Detections, Result, Tensors


class PictureSize(BaseModel):
    """Of the picture as it was turned upright."""

    height: int
    width: int


class Detection(BaseModel):
    """One object."""

    box: tuple[float, float, float, float] = Field(description="x1, y1, x2, y2 in pixels of the picture")
    class_id: int
    name: str
    score: float


class ScoredClass(BaseModel):
    """One class of the whole picture."""

    class_id: int
    name: str
    score: float


class ClassShare(BaseModel):
    """How much of the picture, as far as the model saw it, is of a class."""

    class_id: int
    name: str
    share: float


class Array(BaseModel):
    """What a model of raw tensors gave, told but not sent."""

    dtype: str
    shape: list[int]


class DetectAnswer(BaseModel):
    """A picture's result; of `detections`, `classes`, `shares` with `mask` and `tensors` what the model's task has."""

    model: str
    version: str
    task: Task
    trained: bool = Field(description="false: the weights are random, and the result means nothing")
    picture: PictureSize
    detections: list[Detection] | None = None
    classes: list[ScoredClass] | None = None
    shares: list[ClassShare] | None = None
    mask: str | None = Field(
        None, description=f"base64 of a grey PNG of class ids, as large as the picture; {UNSEEN}: not seen"
    )
    tensors: dict[str, Array] | None = None
    times_ms: dict[str, float] = Field(description="How long each step took in the worker, and `total`")
    annotated: str | None = Field(None, description="base64 of the picture with the result drawn on it, a JPEG")


def answer_of(
    card: ModelCard, result: Result, message: ResultMessage, times_ms: Mapping[str, float], annotated: bytes | None
) -> DetectAnswer:
    """A result in words. `message`: the worker's, whose geometry says how the picture was made to fit the model."""
    made = message.geometry
    assert made is not None
    return DetectAnswer(
        model=card.name,
        version=card.version,
        task=card.task,
        trained=card.trained,
        picture=PictureSize(height=made.source_height, width=made.source_width),
        times_ms=dict(times_ms),
        annotated=None if annotated is None else base64.b64encode(annotated).decode(),
        **_told(card, result, made),
    )


def _told(card: ModelCard, result: Result, made: Geometry) -> dict[str, Any]:
    """The fields that are the task's own."""
    name = card.labels.name_of
    match result:
        case Detections():
            rows = zip(result.boxes.tolist(), result.class_ids.tolist(), result.scores.tolist(), strict=True)
            return {
                "detections": [
                    Detection(box=tuple(box), class_id=class_id, name=name(class_id), score=score)
                    for box, class_id, score in rows
                ]
            }
        case Classification():
            return {
                "classes": [
                    ScoredClass(class_id=class_id, name=name(class_id), score=score)
                    for class_id, score in zip(result.class_ids, result.scores, strict=True)
                ]
            }
        case Tensors():
            shapes = {
                head: Array(dtype=array.dtype.name, shape=list(array.shape)) for head, array in result.values.items()
            }
            return {"tensors": shapes}
    return _of_mask(card, result, made)


def _of_mask(card: ModelCard, mask: Mask, made: Geometry) -> dict[str, Any]:
    seen = mask[
        made.paste_top : made.paste_top + made.paste_height, made.paste_left : made.paste_left + made.paste_width
    ]
    counts = np.bincount(seen.reshape(-1))
    shares = [
        ClassShare(class_id=class_id, name=card.labels.name_of(class_id), share=int(counts[class_id]) / seen.size)
        for class_id in np.argsort(-counts, kind="stable").tolist()
        if counts[class_id]
    ]
    laid = mask_codecs.encode(np.ascontiguousarray(geometry.to_source(mask, made, UNSEEN)), "png")
    return {"shares": shares, "mask": base64.b64encode(laid).decode()}
