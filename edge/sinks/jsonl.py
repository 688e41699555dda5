"""Results as JSON lines, for programs: one object a frame, whatever the task is."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from edge.sinks.files import unwritable
from edge.sinks.sink import FrameResult
from shared.imaging.geometry import UNSEEN, Geometry
from shared.imaging.labels import Labels
from shared.imaging.mask_codecs import Mask
from shared.messages.model_card import ModelCard
from shared.messages.results import Classification, Detections, Result, Tensors

RESULTS_NAME = "results.jsonl"
_UNSEEN = "unseen"  # Of a mask laid back onto a frame whose margins were cut.


class JsonLinesSink:
    """Writes `results.jsonl`, each line as its frame is answered; `sequence` finds the frame's row in the log.

    Every line tells camera, index, sequence, stamp_ns, task, model, version and engine, and then: of a segmentation
    `classes`, the share of the mask's pixels by class; of a classification `classes`, name, id and score, the best
    first; of a detection `frame` (height, width) and `detections`, name, id, score and box (x1, y1, x2, y2 in pixels
    of that frame); of raw tensors `tensors`, dtype and shape by name. Scores and boxes are float32, told to the last
    digit.
    """

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        """Start the file.

        Raises:
            SinkError: it cannot be written.
        """
        self._path = folder / RESULTS_NAME
        self._card = card
        try:
            self._file = self._path.open("ab", buffering=0)  # A kill leaves whole lines.
        except OSError as error:
            raise unwritable(self._path, error) from error

    def write(self, answered: FrameResult) -> None:
        """See Sink."""
        fields = {
            "camera": answered.camera,
            "index": answered.frame_index,
            "sequence": answered.sequence,
            "stamp_ns": answered.stamp_ns,
            "task": self._card.task.value,
            "model": self._card.name,
            "version": answered.model_version,
            "engine": answered.engine,
            **told_of(answered.result, answered.geometry, self._card.labels),
        }
        line = (json.dumps(fields, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        try:
            written = self._file.write(line)
        except OSError as error:
            raise unwritable(self._path, error) from error
        if written != len(line):
            raise unwritable(self._path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def close(self) -> None:
        """See Sink."""
        self._file.close()


def told_of(result: Result, geometry: Geometry, labels: Labels) -> dict[str, Any]:
    """What a line tells of the result."""
    match result:
        case Classification(class_ids, scores):
            return {"classes": [_class(labels, *pair) for pair in zip(class_ids, scores, strict=True)]}
        case Detections(boxes, class_ids, scores):
            objects = zip(class_ids.tolist(), scores.tolist(), boxes.tolist(), strict=True)
            frame = [geometry.source_height, geometry.source_width]
            found = [{**_class(labels, class_id, score), "box": box} for class_id, score, box in objects]
            return {"frame": frame, "detections": found}
        case Tensors(values):
            return {"tensors": {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in values.items()}}
    return {"classes": _shares(result, labels)}


def _class(labels: Labels, class_id: int, score: float) -> dict[str, Any]:
    return {"name": labels.name_of(class_id), "id": class_id, "score": score}


def _shares(mask: Mask, labels: Labels) -> dict[str, float]:
    """The share of the pixels of each class that is there."""
    class_ids, counts = np.unique(mask, return_counts=True)
    return {
        _UNSEEN if class_id == UNSEEN >= len(labels.names) else labels.name_of(class_id): count / mask.size
        for class_id, count in zip(class_ids.tolist(), counts.tolist(), strict=True)
    }
