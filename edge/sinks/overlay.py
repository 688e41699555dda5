"""Overlay pictures: every frame with its mask laid over it, small enough to keep for a report."""

from pathlib import Path
from typing import Any

from edge.sinks.sink import Segmented
from shared.errors import SkylaneError
from shared.labels import overlay
from shared.model_card import ModelCard
from shared.opencv import cv2
from shared.pictures import stamp_untrained
from shared.topics import camera_name

_OPACITY = 0.5
_WIDTH = 480
_QUALITY = 80


class OverlayError(SkylaneError):
    """An overlay picture cannot be written."""


class OverlaySink:
    """Writes `overlays/<camera>_<sequence>.jpg`: frame and mask blended, at most 480 pixels wide."""

    in_order = False

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._folder = folder / "overlays"
        self._card = card

    def write(self, segmented: Segmented) -> None:
        """See Sink."""
        height, width = segmented.mask.shape
        scale = min(1.0, _WIDTH / width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        picture: Any = cv2.resize(segmented.picture, size, interpolation=cv2.INTER_AREA)
        mask: Any = cv2.resize(segmented.mask, size, interpolation=cv2.INTER_NEAREST)
        blended = overlay(picture, mask, self._card.labels, _OPACITY)
        if not self._card.trained:
            blended = stamp_untrained(blended)
        self._save(f"{camera_name(segmented.camera)}_{segmented.sequence:06d}.jpg", blended)

    def close(self) -> None:
        """See Sink; every file is whole already."""

    def _save(self, name: str, rgb: Any) -> None:
        bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
        taken, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        assert taken
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.tobytes())
        except OSError as error:
            raise OverlayError(
                f"{path} cannot be written: {error.strerror}: make room or choose another --out"
            ) from error
