"""Adds rain to a finished image: reflections in the wet road, and falling drops."""

import cv2
import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.canvas import ROAD, SIDEWALK, Image
from rosbag_tools.drive.view import SceneView

_DAMP = 0.1  # Wetness below which the ground does not reflect.
_DROPS = 0.0015  # Share of pixels, at a quarter of the resolution, where a streak begins.
_FIELD = (700, 900)


class Rain:
    """The rain of one drive."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        drops = np.random.default_rng([seed, 11]).random(_FIELD, np.float32) < _DROPS
        streaks = np.asarray(cv2.blur(drops.astype(np.float32), (1, 15))) * 390
        self._streaks: Image = np.clip(streaks, 0, 60).astype(np.uint8)

    def fall(self, view: SceneView, time_s: float) -> None:
        """Adds the rain at a time to a finished image; owners do not change."""
        if view.weather.wetness <= _DAMP:
            return
        _mirror(view)
        height, width = view.canvas.owners.shape
        shifts = np.random.default_rng([self._seed, int(time_s * 1000) & 0xFFFFFFFF]).integers(0, _FIELD[0], 2).tolist()
        streaks = np.roll(self._streaks, shifts, (0, 1))
        layer = cv2.resize(streaks, (width, height), interpolation=cv2.INTER_LINEAR)
        cv2.add(view.canvas.rgb, cv2.cvtColor(layer, cv2.COLOR_GRAY2RGB), dst=view.canvas.rgb)


def _mirror(view: SceneView) -> None:
    top = int(view.camera.horizon) + 1
    rgb = view.canvas.rgb
    ground = rgb[top:]
    above = np.ascontiguousarray(rgb[max(0, top - len(ground)) : top][::-4, ::4])
    blurred = cv2.blur(above, (3, 21))
    mirror: npt.NDArray[np.uint8] = np.asarray(cv2.resize(blurred, (ground.shape[1], ground.shape[0])), np.uint8)
    owners = view.canvas.owners[top:]
    wet = ((owners == ROAD) | (owners == SIDEWALK)).astype(np.uint8)
    share = view.weather.wetness
    cv2.copyTo(cv2.addWeighted(ground, 1 - share, mirror, share, 0), wet, ground)
