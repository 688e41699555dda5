"""The JSON response of `/api/detect`."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from shared.imaging import geometry, mask_codecs
from shared.imaging.geometry import UNSEEN, Geometry
from shared.imaging.mask_codecs import Mask
from shared.messages.frame import ResultMessage
from shared.messages.model_card import ModelCard
from shared.messages.results import Classification, Detections, Result, Tensors
from shared.tasks.task import TASKS


class PictureSize(BaseModel):
    """Size of the image in pixels, after its EXIF rotation."""

    height: int
    width: int


class Detection(BaseModel):
    """A detected object."""

    box: tuple[float, float, float, float] = Field(description="x1, y1, x2, y2 in pixels of the image")
    class_id: int
    name: str
    score: float


class ScoredClass(BaseModel):
    """A class of the whole image."""

    class_id: int
    name: str
    score: float


class ClassShare(BaseModel):
    """The share of a class in the part of the image that the model processed, 0 to 1."""

    class_id: int
    name: str
    share: float


class Array(BaseModel):
    """Type and shape of an output tensor, whose values are not sent."""

    dtype: str
    shape: list[int]


class DetectAnswer(BaseModel):
    """The result for an image; the model's task determines which optional fields are present."""

    model: str
    version: str
    task: str = Field(json_schema_extra={"enum": [*TASKS]})
    trained: bool = Field(description="false: the weights are random, and the result is meaningless")
    picture: PictureSize
    detections: list[Detection] | None = None
    classes: list[ScoredClass] | None = None
    shares: list[ClassShare] | None = None
    mask: str | None = Field(
        None,
        description=f"base64 of a grey PNG of class ids, in the size of the image; {UNSEEN}: not processed by the model",
    )
    tensors: dict[str, Array] | None = None
    times_ms: dict[str, float] = Field(description="Duration of each step in the worker, and `total`")
    annotated: str | None = Field(None, description="base64 of a JPEG: the image with the result drawn on it")


def build_response(
    card: ModelCard, result: Result, message: ResultMessage, times_ms: Mapping[str, float], annotated: bytes | None
) -> bytes:
    """Builds the JSON; the mask message has the geometry by which the image was fitted to the model."""
    plan = message.geometry
    assert plan is not None
    answer = DetectAnswer(
        model=card.name,
        version=card.version,
        task=card.task,
        trained=card.trained,
        picture=PictureSize(height=plan.source_height, width=plan.source_width),
        times_ms=dict(times_ms),
        annotated=None if annotated is None else base64.b64encode(annotated).decode(),
        **_task_fields(card, result, plan),
    )
    return answer.model_dump_json(exclude_none=True).encode()


def _task_fields(card: ModelCard, result: Result, plan: Geometry) -> dict[str, Any]:
    """Returns the fields that depend on the model's task."""
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
    return _mask_fields(card, result, plan)


def _mask_fields(card: ModelCard, mask: Mask, plan: Geometry) -> dict[str, Any]:
    processed = mask[
        plan.paste_top : plan.paste_top + plan.paste_height, plan.paste_left : plan.paste_left + plan.paste_width
    ]
    counts = np.bincount(processed.reshape(-1))
    shares = [
        ClassShare(class_id=class_id, name=card.labels.name_of(class_id), share=int(counts[class_id]) / processed.size)
        for class_id in np.argsort(-counts, kind="stable").tolist()
        if counts[class_id]
    ]
    png = mask_codecs.encode(np.ascontiguousarray(geometry.to_source(mask, plan, UNSEEN)), "png")
    return {"shares": shares, "mask": base64.b64encode(png).decode()}
