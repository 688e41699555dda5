"""The JSON lines sink: one object per frame, for every task."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.sinks.rendering import check_new, write_error
from edge.sinks.sink import FrameResult, PresentedTick
from shared.messages.model_card import ModelCard
from shared.runlog.presented_log import OutputOrigin
from shared.task import task_named

RESULTS_NAME = "results.jsonl"


class JsonLinesSink:
    """Writes `results.jsonl`, one line as soon as a frame has its result.

    Every line has camera, index, sequence (as in the latency log), stamp_ns, task, model, version, engine and origin
    (worker, reused or local; reused_sequence names the frame whose result is reused), and the result:

    - segmentation: `classes`, the share of the mask's pixels by class;
    - classification: `classes` with name, id and score, the best first;
    - detection: `frame` (height, width) and `detections` with name, id, score and box (x1, y1, x2, y2 in pixels);
    - raw tensors: `tensors`, dtype and shape by name.

    Scores and boxes are float32 with all their digits. The line of a presenter's output has age_ns and
    source_sequence (of the frame that the result was computed for) instead of version and engine; its origin is remote,
    warped, local or fused. A frame without an output has the origin none and a reason.
    """

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        """Opens the file.

        Raises:
            SinkError: the file exists or cannot be written.
        """
        self._path = folder / RESULTS_NAME
        self._card = card
        self._task = task_named(card.task)
        check_new(self._path)
        try:
            self._file = self._path.open("xb", buffering=0)  # A killed process leaves complete lines.
        except OSError as error:
            raise write_error(self._path, error) from error

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        is_output = frame.age_ns is not None
        numbers = {
            "reused_sequence": frame.reused_sequence,
            "age_ns": frame.age_ns,
            "source_sequence": frame.source_sequence,
        }
        facts: dict[str, Any] = {
            "model": frame.model or self._card.name,
            **({} if is_output else {"version": frame.model_version, "engine": frame.engine}),
            "origin": frame.origin,
            **{name: number for name, number in numbers.items() if number is not None},
        }
        self._append(frame, facts | self._task.json_fields(frame.result, frame.geometry, self._card.labels))

    def write_missing(self, missing: PresentedTick) -> None:
        """See MissingOutputSink."""
        self._append(missing, {"model": self._card.name, "origin": OutputOrigin.NONE, "reason": missing.reason})

    def close(self) -> None:
        """See Sink."""
        self._file.close()

    def _append(self, frame: FrameResult | PresentedTick, facts: Mapping[str, Any]) -> None:
        fields = {
            "camera": frame.camera,
            "index": frame.frame_index,
            "sequence": frame.sequence,
            "stamp_ns": frame.stamp_ns,
            "task": self._card.task,
            **facts,
        }
        line = (json.dumps(fields, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        try:
            written = self._file.write(line)
        except OSError as error:
            raise write_error(self._path, error) from error
        if written != len(line):
            raise write_error(self._path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
