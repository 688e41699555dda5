"""Writes small runs with stored masks, and the bags with their true labels, for tests of streaming accuracy.

A car of class 2 moves to the right by a few pixels each frame, on a road of class 1. The model is always right, so that
only the age of an output makes it wrong.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rosbag_tools.reading.bag import Bag
from rosbag_tools.writer import BagWriter
from shared.imaging.codec import Mask
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome
from shared.runlog.presented_log import OutputOrigin, PresentedLog, PresentedRow
from shared.runlog.run_manifest import write_manifest
from shared.stages import Stage
from tests.support.latency_rows import answered_row

CAMERA = "/sensors/camera/left/image_raw"
NAMES = ("none", "road", "car")
HEIGHT, WIDTH = 24, 96
STEP_NS = 100_000_000  # Time between two frames.
STAMP_NS = 1_700_000_000_000_000_000  # Of the first frame, by the camera's clock.
DUE_NS = 1_800_000_000_000_000_000  # The time at which the first frame was due.
_FOLDER = CAMERA.removesuffix("/image_raw")
_CAR_PIXELS, _MOVED_PIXELS = 8, 2


@dataclass(frozen=True, slots=True)
class StreamingRunPlan:
    """Settings of a run."""

    frames: int = 20
    total_ms: float = 150.0  # Latency of each result.
    unanswered: Collection[int] = ()  # Frames without a result.
    local: Collection[int] = ()  # Frames that the local model answered, in 50 ms.
    warped: Mapping[int, int] | None = None  # Ticks by the frame whose true mask a presenter gave; None: no presenter.
    presenter: str = "warp"
    after_due_ms: Mapping[int, float] = field(
        default_factory=dict
    )  # When the outputs of some ticks were ready; else 5.
    source: Mapping[str, Any] | None = None  # The manifest's section.
    model: Mapping[str, Any] | None = None  # The same.
    not_stored: Collection[int] = ()  # Frames whose result is not in the bag of the sink.


def true_mask(frame: int) -> Mask:
    """Returns the true labels of a frame."""
    mask = np.full((HEIGHT, WIDTH), 1, np.uint8)
    left = frame * _MOVED_PIXELS
    mask[8:16, left : left + _CAR_PIXELS] = 2
    mask[:2] = 0
    return mask


def write_truth(
    path: Path,
    frames: Sequence[int],
    *,
    topic: str = f"{_FOLDER}/labels",
    encoding: str = "mono8",
    names: Sequence[str] = (),
    mask_of: Callable[[int], Mask] = true_mask,
) -> str:
    """Writes a bag with labels of some frames, which it names if there are `names`; returns its SHA-256."""
    with BagWriter(path) as writer:
        if names:
            first_ns = _stamp_ns(0)
            topic_of_names = f"{_FOLDER}/label_info"
            writer.write_label_info(topic_of_names, names, stamp_ns=first_ns, received_ns=first_ns, frame_id="camera")
        for frame in frames:
            mask = mask_of(frame)
            pixels = mask if encoding == "mono8" else np.repeat(mask[..., np.newaxis], 3, axis=2)
            writer.write_image(topic, pixels, encoding, _stamp_ns(frame), _stamp_ns(frame), "camera")
    with Bag(path) as bag:
        return bag.sha256


def write_streaming_run(folder: Path, plan: StreamingRunPlan = StreamingRunPlan()) -> Path:
    """Writes log, manifest and stored masks of a run; returns its folder."""
    with LogWriter(folder) as log:
        for frame in range(plan.frames):
            log.close(_row(plan, frame))
    model = {"name": "road", "sha256": "a" * 64, "trained": True, "task": "segmentation", "labels": list(NAMES)}
    manifest: dict[str, Any] = {
        "kind": "run",
        "schema": 5,
        "session": "s1",
        "state": "complete",
        "model": {**model, "height": HEIGHT, "width": WIDTH} if plan.model is None else dict(plan.model),
        "source": dict(plan.source or {}),
        "configuration": {},
    }
    answered = [frame for frame in range(plan.frames) if frame not in plan.unanswered]
    write_masks(folder / "masks_bag", {frame: frame for frame in answered if frame not in plan.not_stored})
    if plan.warped is not None:
        (folder / "presented").mkdir()
        write_masks(folder / "presented" / "masks_bag", plan.warped)
        manifest["presenting"] = {"kind": plan.presenter}
        with PresentedLog(folder) as presented:
            for frame in range(plan.frames):
                presented.write(_presented(plan, frame))
    write_manifest(folder, manifest)
    return folder


def write_masks(path: Path, masks: Mapping[int, int], topic: str = f"{_FOLDER}/masks") -> None:
    """Writes the bag of a sink: at the stamp of each frame, the true mask of another one."""
    with BagWriter(path, "mcap", "none") as writer:
        for frame, shown in masks.items():
            writer.write_image(topic, true_mask(shown), "mono8", _stamp_ns(frame), _stamp_ns(frame), "camera")


def _stamp_ns(frame: int) -> int:
    return STAMP_NS + frame * STEP_NS


def _row(plan: StreamingRunPlan, frame: int) -> LatencyRow:
    due_ns = DUE_NS + frame * STEP_NS
    facts: dict[str, Any] = {
        "vehicle": "car",
        "camera": CAMERA,
        "session": "s1",
        "sequence": frame,
        "frame_index": frame,
        "frame_stamp_ns": _stamp_ns(frame),
        "model": "road",
    }
    if frame in plan.unanswered:
        return LatencyRow(**facts, outcome=Outcome.DROPPED, reason="window", edge_times={Stage.DUE: due_ns})
    if frame in plan.local:
        times = {Stage.DUE: due_ns, Stage.INFERRED_LOCALLY: due_ns + 50_000_000}
        return LatencyRow(**facts, outcome=Outcome.ANSWERED_LOCALLY, engine="tflite", edge_times=times)
    answer = {"model_version": "1", "engine": "tensorflow", "worker_session": "w1"}
    return answered_row(due_ns, round(plan.total_ms * 1e6), **facts, **answer)


def _presented(plan: StreamingRunPlan, frame: int) -> PresentedRow:
    assert plan.warped is not None
    due_ns = DUE_NS + frame * STEP_NS
    facts: dict[str, Any] = {
        "camera": CAMERA,
        "session": "s1",
        "tick": frame,
        "frame_index": frame,
        "frame_stamp_ns": _stamp_ns(frame),
        "due_ns": due_ns,
        "presented_ns": due_ns + round(1e6 * plan.after_due_ms.get(frame, 5)),
        "processing_ns": 4_000_000,
    }
    if frame not in plan.warped:
        return PresentedRow(**facts, origin=OutputOrigin.NONE, reason="no_result")
    age: dict[str, Any] = {"source_sequence": frame - 2, "age_ns": 2 * STEP_NS, "flow": "half"}
    return PresentedRow(**facts, origin=OutputOrigin.WARPED, **age)
