"""The PNG sink: masks as class ids and as colours, and images with other results drawn on them."""

from pathlib import Path

import numpy as np

from edge.sinks.files import write_image
from edge.sinks.rendering import draw_result, input_image, mark_untrained
from edge.sinks.sink import FrameResult
from shared.imaging.labels import colourise
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.topics import camera_name

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
        name = f"{camera_name(frame.camera)}/{frame.frame_index:06d}.png"
        if isinstance(frame.result, np.ndarray):
            colours = mark_untrained(colourise(frame.result, self._card.labels), self._card)
            write_image(self._folder / "masks" / name, frame.result, *_PARAMETERS)
            write_image(self._folder / "masks_colour" / name, colours, *_PARAMETERS)
        else:
            drawn = mark_untrained(draw_result(input_image(frame), frame, self._card, 1.0), self._card)
            write_image(self._folder / "pictures" / name, drawn, *_PARAMETERS)

    def close(self) -> None:
        """See Sink. Every file is complete already."""
