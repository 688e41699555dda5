"""Masks as PNG files: class ids for programs, colours for people."""

from pathlib import Path
from typing import Any

from edge.sinks.sink import Segmented
from shared.errors import SkylaneError
from shared.labels import colourise
from shared.model_card import ModelCard
from shared.opencv import cv2
from shared.pictures import stamp_untrained
from shared.topics import camera_name


class PngError(SkylaneError):
    """A picture cannot be written."""


class PngSink:
    """Writes `masks/<camera>/<index>.png` with class ids and `masks_colour/…` with the street's colours."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder
        self._card = card

    def write(self, segmented: Segmented) -> None:
        """See Sink."""
        name = f"{camera_name(segmented.camera)}/{segmented.frame_index:06d}.png"
        colours: Any = colourise(segmented.mask, self._card.labels)
        if not self._card.trained:
            colours = stamp_untrained(colours)
        self._save(self._folder / "masks" / name, segmented.mask)
        self._save(self._folder / "masks_colour" / name, cv2.cvtColor(colours, cv2.COLOR_RGB2BGR))

    def close(self) -> None:
        """See Sink; every file is whole already."""

    def _save(self, path: Path, picture: Any) -> None:
        taken, data = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, 1])
        assert taken
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.tobytes())
        except OSError as error:
            raise PngError(f"{path} cannot be written: {error.strerror}: make room or choose another --out") from error
