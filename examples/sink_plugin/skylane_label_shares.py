"""A sink for Skylane: `--sink shares` writes `shares.csv`, the share of each class in the mask of each frame."""

import csv
from pathlib import Path

import numpy as np

from edge.sinks.sink import FrameResult
from shared.messages.model_card import ModelCard
from shared.task import Task


class ShareSink:
    """Writes a row for each frame: camera, index, and the share of each class of the model, 0 to 1."""

    in_order = True  # It gets the frames in order, and none that comes too late.

    @staticmethod
    def holds(task: Task) -> bool:
        """Returns whether the sink can write the results of a task: only masks have a shape."""
        return task.has_shape

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._classes = len(card.labels.names)
        self._file = (folder / "shares.csv").open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(("camera", "index", *card.labels.names))

    def write(self, frame: FrameResult) -> None:
        """Writes one frame; `frame.result` is the mask, H×W uint8 class ids."""
        pixels = np.bincount(frame.result.ravel(), minlength=self._classes)[: self._classes]
        self._rows.writerow((frame.camera, frame.frame_index, *(pixels / frame.result.size).round(6)))

    def close(self) -> None:
        """Completes the file."""
        self._file.close()
