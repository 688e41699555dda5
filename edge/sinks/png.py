"""Results as PNG files: class ids for programs, colours for people, and pictures with what was found drawn on them."""

from pathlib import Path

import numpy as np

from edge.sinks.files import write_picture
from edge.sinks.rendering import seen, told, view
from edge.sinks.sink import FrameResult
from shared.imaging.labels import colourise
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.topics import camera_name

_PARAMETERS = (cv2.IMWRITE_PNG_COMPRESSION, 1)


class PngSink:
    """Writes `masks/<camera>/<index>.png` with class ids and `masks_colour/…` with the street's colours.

    Of other tasks it writes `pictures/<camera>/<index>.png`: what the model saw, with its result drawn on it.
    """

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder
        self._card = card

    def write(self, answered: FrameResult) -> None:
        """See Sink."""
        name = f"{camera_name(answered.camera)}/{answered.frame_index:06d}.png"
        if isinstance(answered.result, np.ndarray):
            colours = told(colourise(answered.result, self._card.labels), self._card)
            write_picture(self._folder / "masks" / name, answered.result, *_PARAMETERS)
            write_picture(self._folder / "masks_colour" / name, colours, *_PARAMETERS)
        else:
            drawn = told(view(seen(answered), answered, self._card, 1.0), self._card)
            write_picture(self._folder / "pictures" / name, drawn, *_PARAMETERS)

    def close(self) -> None:
        """See Sink; every file is whole already."""
