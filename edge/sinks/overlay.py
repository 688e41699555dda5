"""The overlay sink: small images of each frame with its result drawn on it, for reports."""

from pathlib import Path

from edge.sinks.files import write_image
from edge.sinks.rendering import draw_result, input_image, mark_untrained, resized
from edge.sinks.sink import FrameResult
from shared.imaging.drawing import LEGIBLE_WIDTH
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.topics import camera_name

_OPACITY = 0.5
_QUALITY = 80


class OverlaySink:
    """Writes `overlays/<camera>_<sequence>.jpg`, at most 480 pixels wide; images with text are exactly so wide."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder / "overlays"
        self._card = card

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        image = input_image(frame)
        height, width = image.shape[:2]
        if width > LEGIBLE_WIDTH:
            image = resized(image, LEGIBLE_WIDTH, max(1, round(height * LEGIBLE_WIDTH / width)))
        drawn = mark_untrained(draw_result(image, frame, self._card, _OPACITY), self._card)
        name = f"{camera_name(frame.camera)}_{frame.sequence:06d}.jpg"
        write_image(self._folder / name, drawn, cv2.IMWRITE_JPEG_QUALITY, _QUALITY)

    def close(self) -> None:
        """See Sink. Every file is complete already."""
