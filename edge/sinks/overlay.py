"""Overlay pictures: every frame with its result drawn on it, small enough to keep for a report."""

from pathlib import Path

from edge.sinks.files import write_picture
from edge.sinks.rendering import scaled, seen, told, view
from edge.sinks.sink import FrameResult
from shared.imaging.drawing import LEGIBLE_WIDTH
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.topics import camera_name

_OPACITY = 0.5
_QUALITY = 80


class OverlaySink:
    """Writes `overlays/<camera>_<sequence>.jpg`, at most 480 pixels wide; where text is drawn, just as wide."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder / "overlays"
        self._card = card

    def write(self, answered: FrameResult) -> None:
        """See Sink."""
        picture = seen(answered)
        height, width = picture.shape[:2]
        if width > LEGIBLE_WIDTH:
            picture = scaled(picture, LEGIBLE_WIDTH, max(1, round(height * LEGIBLE_WIDTH / width)))
        drawn = told(view(picture, answered, self._card, _OPACITY), self._card)
        name = f"{camera_name(answered.camera)}_{answered.sequence:06d}.jpg"
        write_picture(self._folder / name, drawn, cv2.IMWRITE_JPEG_QUALITY, _QUALITY)

    def close(self) -> None:
        """See Sink; every file is whole already."""
