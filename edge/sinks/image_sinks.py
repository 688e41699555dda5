"""The sinks that write a file per frame: PNG masks or drawn results, NumPy arrays, and JPEG overlays."""

import io
import zipfile
from pathlib import Path

import numpy as np

from edge.sinks.rendering import draw_result, input_image, resized, write_image, write_sink_file
from edge.sinks.sink import FrameResult
from shared.imaging.labels import colourise
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.results import Tensors
from shared.tasks.drawing import LEGIBLE_WIDTH, mark_untrained

_PARAMETERS = (cv2.IMWRITE_PNG_COMPRESSION, 1)


class PngSink:
    """Writes `masks/<camera>/<index>.png` with class ids and `masks_colour/…` with colours.

    For tasks other than segmentation, it writes `pictures/<camera>/<index>.png`: the model's input with its result.
    """

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder
        self._card = card

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        name = f"{frame.camera_name}/{frame.frame_index:06d}.png"
        if isinstance(frame.result, np.ndarray):
            colours = mark_untrained(colourise(frame.result, self._card.labels), self._card)
            write_image(self._folder, f"masks/{name}", frame.result, *_PARAMETERS)
            write_image(self._folder, f"masks_colour/{name}", colours, *_PARAMETERS)
        else:
            drawn = mark_untrained(draw_result(input_image(frame), frame, self._card, 1.0), self._card)
            write_image(self._folder, f"pictures/{name}", drawn, *_PARAMETERS)

    def close(self) -> None:
        """See Sink. Every file is complete already."""


class NpzSink:
    """Writes `tensors/<camera>/<index>.npz` with the model's outputs by name, unchanged."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        del card
        self._folder = folder

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        assert isinstance(frame.result, Tensors)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:  # np.savez reserves some names for its options.
            for name, array in frame.result.values.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        name = f"tensors/{frame.camera_name}/{frame.frame_index:06d}.npz"
        write_sink_file(self._folder, name, packed.getvalue())

    def close(self) -> None:
        """See Sink. Every file is complete already."""


_OPACITY = 0.5
_QUALITY = 80


class OverlaySink:
    """Writes `overlays/<camera>_<sequence>.jpg`, at most 480 pixels wide; with text exactly 480."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder
        self._card = card

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        image = input_image(frame)
        height, width = image.shape[:2]
        if width > LEGIBLE_WIDTH:
            image = resized(image, LEGIBLE_WIDTH, max(1, round(height * LEGIBLE_WIDTH / width)))
        drawn = mark_untrained(draw_result(image, frame, self._card, _OPACITY), self._card)
        name = f"overlays/{frame.camera_name}_{frame.sequence:06d}.jpg"
        write_image(self._folder, name, drawn, cv2.IMWRITE_JPEG_QUALITY, _QUALITY)

    def close(self) -> None:
        """See Sink. Every file is complete already."""
