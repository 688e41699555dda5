"""Runs both models on each frame of a recording, and walks through the frames as a presenter on the vehicle does."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge.presenting.flow import FlowTrack, Motion
from edge.presenting.fuse import LocalOutput, local_input, local_output
from edge.presenting.presenter import Tick
from edge.presenting.warp import moved_mask
from modelling.evaluation.bag_images import EvaluationSettings, LabelledImage, TrueBoxes, prepared
from shared.imaging.codec import Mask
from shared.imaging.frames import Layout, Pixels
from shared.imaging.geometry import UNSEEN, Geometry
from shared.imaging.image_files import ImageArray
from shared.imaging.opencv import cv2
from shared.inference.model import Model
from shared.tasks.detection import objects

_NS_PER_MS = 1e6
_TOLERANCE = 0.1  # Largest difference of a frame's age, relative to the age that it counts for.


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A frame as a tick, with its truth and what both models make of it."""

    tick: Tick
    truth: Any  # A mask of the model's input size; or boxes in its pixels, and their classes.
    remote: Any
    local: LocalOutput


@dataclass(frozen=True, slots=True)
class AgedResult:
    """The result of an earlier frame at a tick."""

    age: int  # Index of the age.
    source: RecordedFrame
    now: RecordedFrame
    motion: Motion  # Motion since the frame of the result.


def recorded_frames(
    images: Iterable[LabelledImage],
    reference: Model,
    local: Model,
    settings: EvaluationSettings,
    local_side: int | None = None,
) -> Iterator[RecordedFrame]:
    """Yields the frames of images; the truth of those that have none is the reference model's result.

    `local_side`: see `coarse`.

    Raises:
        SkylaneError: the images cannot be read.
    """
    card, manifest = reference.card, reference.manifest
    truths = TrueBoxes(card.labels.names) if card.task == "detection" else None
    for number, (pixels, layout, stamp_ns, truth) in enumerate(images):
        image, plan = prepared(pixels, layout, card)
        outputs = reference.infer_one(image)
        rgb = image[..., ::-1] if card.layout is Layout.BGR8 else image
        tick = Tick(number, stamp_ns, np.ascontiguousarray(rgb), plan)
        own = local_result(local, tick.image, plan, local_side)
        remote: Any = outputs["mask"] if truths is None else objects(outputs, plan, manifest)
        true: Any
        if truths is not None:
            true = truths.in_input(remote if truth is None else truth, plan)
        else:
            true = _without_padding(remote, plan) if truth is None else labels_in_input(truth, plan)
        yield RecordedFrame(tick, true, remote, own)
        settings.on_frame(number + 1, None)


def confirmed(frames: Sequence[RecordedFrame]) -> list[RecordedFrame]:
    """Returns frames whose truth is the reference model's mask where its mask of the next frame, moved back, is the same.

    The local model sees the same image as the reference model, and shares some of its errors: a mask that is compared with
    the reference model's own one is overrated by them. The next image has other noise, so that few such errors are confirmed.
    Pixels that are not, and the last frame, have no truth: `UNSEEN`.
    """
    track = FlowTrack()
    found: list[RecordedFrame] = []
    later: RecordedFrame | None = None
    for now in reversed(frames):
        plan = now.tick.geometry
        track.add(replace(now.tick, sequence=-now.tick.sequence, due_ns=-now.tick.due_ns))
        motion = None if later is None else track.motion_since(-later.tick.due_ns)
        truth = np.full_like(now.remote, UNSEEN)
        if later is not None and motion is not None:
            is_same = moved_mask(later.remote, motion, plan) == now.remote
            truth[is_same] = _without_padding(now.remote, plan)[is_same]
        found.append(replace(now, truth=truth))
        later = now
    return found[::-1]


def local_result(local: Model, rgb: ImageArray, plan: Geometry, side: int | None = None) -> LocalOutput:
    """Returns what the local model makes of an image; `plan` is the geometry of the reference model's input.

    `rgb` has the size of that input. `side`: the detail that the local model sees, see `coarse`.
    """
    return local_output(local.infer_one(coarse(local_input(rgb, local.card), side)), plan, local)


def coarse(image: ImageArray, side: int | None) -> ImageArray:
    """Returns an image with the detail of `side`×`side` pixels in its own size, as a smaller network sees it; None: all."""
    if side is None:
        return image
    small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(small, image.shape[1::-1], interpolation=cv2.INTER_LINEAR), np.uint8)


def aged_results(frames: Sequence[RecordedFrame], ages_ms: Sequence[float], every: int = 1) -> Iterator[AgedResult]:
    """Yields the results of the given ages at every n-th tick, with the motion that a presenter would know."""
    track = FlowTrack()
    for number, now in enumerate(frames):
        track.add(now.tick)
        if number % every:
            continue
        for index, age_ms in enumerate(ages_ms):
            wanted_ns = now.tick.due_ns - age_ms * _NS_PER_MS
            source = min(frames[: number + 1], key=lambda frame: abs(frame.tick.due_ns - wanted_ns))
            if abs(source.tick.due_ns - wanted_ns) > _TOLERANCE * age_ms * _NS_PER_MS:
                continue
            motion = track.motion_since(source.tick.due_ns)
            if motion is not None:
                yield AgedResult(index, source, now, motion)


def labels_in_input(labels: Pixels, plan: Geometry) -> Mask:
    """Returns true labels H×W of the frame's size in the model's input; padding is `UNSEEN`."""
    seen: Any = labels[
        plan.crop_top : plan.crop_top + plan.crop_height, plan.crop_left : plan.crop_left + plan.crop_width
    ]
    placed = np.full((plan.target_height, plan.target_width), UNSEEN, np.uint8)
    placed[
        plan.paste_top : plan.paste_top + plan.paste_height, plan.paste_left : plan.paste_left + plan.paste_width
    ] = cv2.resize(seen, (plan.paste_width, plan.paste_height), interpolation=cv2.INTER_NEAREST)
    return placed


def _without_padding(mask: Mask, plan: Geometry) -> Mask:
    """Returns a mask of the model's input with `UNSEEN` in its padding."""
    placed = np.full_like(mask, UNSEEN)
    pasted = np.s_[
        plan.paste_top : plan.paste_top + plan.paste_height, plan.paste_left : plan.paste_left + plan.paste_width
    ]
    placed[pasted] = mask[pasted]
    return placed
