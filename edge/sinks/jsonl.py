"""The JSON lines sink: one object per frame, for every task."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from edge.sinks.files import write_error
from edge.sinks.sink import FrameResult
from shared.imaging.geometry import UNSEEN, Geometry
from shared.imaging.labels import Labels
from shared.imaging.mask_codecs import Mask
from shared.messages.model_card import ModelCard
from shared.messages.results import Classification, Detections, Result, Tensors

RESULTS_NAME = "results.jsonl"
_UNSEEN = "unseen"  # Name of the pixels that the model did not see, in a mask of the frame's size.


class JsonLinesSink:
    """Writes `results.jsonl`, one line as soon as a frame is frame.

    Every line has camera, index, sequence (as in the latency log), stamp_ns, task, model, version and engine, and the
    result:

    - segmentation: `classes`, the share of the mask's pixels by class;
    - classification: `classes` with name, id and score, the best first;
    - detection: `frame` (height, width) and `detections` with name, id, score and box (x1, y1, x2, y2 in pixels);
    - raw tensors: `tensors`, dtype and shape by name.

    Scores and boxes are float32 with all their digits.
    """

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        """Opens the file.

        Raises:
            SinkError: the file cannot be written.
        """
        self._path = folder / RESULTS_NAME
        self._card = card
        try:
            self._file = self._path.open("ab", buffering=0)  # A killed process leaves complete lines.
        except OSError as error:
            raise write_error(self._path, error) from error

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        fields = {
            "camera": frame.camera,
            "index": frame.frame_index,
            "sequence": frame.sequence,
            "stamp_ns": frame.stamp_ns,
            "task": self._card.task.value,
            "model": self._card.name,
            "version": frame.model_version,
            "engine": frame.engine,
            **result_fields(frame.result, frame.geometry, self._card.labels),
        }
        line = (json.dumps(fields, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        try:
            written = self._file.write(line)
        except OSError as error:
            raise write_error(self._path, error) from error
        if written != len(line):
            raise write_error(self._path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def close(self) -> None:
        """See Sink."""
        self._file.close()


def result_fields(result: Result, geometry: Geometry, labels: Labels) -> dict[str, Any]:
    """Returns the fields of a line that depend on the task."""
    match result:
        case Classification(class_ids, scores):
            return {"classes": [_class(labels, *pair) for pair in zip(class_ids, scores, strict=True)]}
        case Detections(boxes, class_ids, scores):
            objects = zip(class_ids.tolist(), scores.tolist(), boxes.tolist(), strict=True)
            size = [geometry.source_height, geometry.source_width]
            found = [{**_class(labels, class_id, score), "box": box} for class_id, score, box in objects]
            return {"frame": size, "detections": found}
        case Tensors(values):
            return {"tensors": {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in values.items()}}
    return {"classes": _shares(result, labels)}


def _class(labels: Labels, class_id: int, score: float) -> dict[str, Any]:
    return {"name": labels.name_of(class_id), "id": class_id, "score": score}


def _shares(mask: Mask, labels: Labels) -> dict[str, float]:
    """Returns the share of the pixels of each class in a mask."""
    class_ids, counts = np.unique(mask, return_counts=True)
    return {
        _UNSEEN if class_id == UNSEEN >= len(labels.names) else labels.name_of(class_id): count / mask.size
        for class_id, count in zip(class_ids.tolist(), counts.tolist(), strict=True)
    }
