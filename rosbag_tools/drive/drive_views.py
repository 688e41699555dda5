"""Single frames of many drives, as a vehicle's camera takes them, and which drives are for training, validation and tests."""

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.scene import WEATHERS, Drive, SceneFrame
from rosbag_tools.drive.sensor import Sensor
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, apply, plan

# Held out for segmentation and detection: validation shows the accuracy in unknown light.
HELD_OUT_WEATHER = "overcast"
TRAINING_WEATHERS = ("clear", "dusk", "fog", "rain")
FIRST_VALIDATION_SEED = 900_000  # All training seeds are smaller.
FIRST_TEST_SEED = 960_000  # Test drives select neither weights nor settings.

_VIEW_SPACING_S = 7.0  # Time between two views of a drive, enough for a different scene.


@dataclass(frozen=True, slots=True)
class DriveView:
    """One frame of one drive."""

    seed: int
    weather: str
    time_s: float
    static_camera: bool = False


def training_views(
    count: int, views_per_drive: int = 4, weathers: tuple[str, ...] = TRAINING_WEATHERS
) -> list[DriveView]:
    """Returns `count` views for training, with the weathers in turn by drive."""
    return _views(count, views_per_drive, 1, weathers)


def validation_views(count: int, weathers: tuple[str, ...], views_per_drive: int = 2) -> list[DriveView]:
    """Returns `count` views of drives that are not used for training."""
    return _views(count, views_per_drive, FIRST_VALIDATION_SEED, weathers)


def unseen_views(count: int, views_per_drive: int = 4) -> list[DriveView]:
    """Returns `count` views of drives that are used for neither training nor validation, in all weathers."""
    return _views(count, views_per_drive, FIRST_TEST_SEED, WEATHERS)


def fixed_camera_views(count: int, *, validation: bool, views_per_drive: int = 8) -> list[DriveView]:
    """Returns `count` views of cameras that stand at the kerb, in all weathers.

    Validation uses other cameras than training. A drive shows only one place, so its views differ in the traffic alone.
    """
    first_seed = FIRST_VALIDATION_SEED if validation else 1
    return [replace(view, static_camera=True) for view in _views(count, views_per_drive, first_seed, WEATHERS)]


def generator(view: DriveView) -> Random:
    """Returns the random generator of a view, so that the same view gives the same bytes."""
    return Random(f"training/{view.seed}/{view.time_s}")


def rendered_view(view: DriveView, height: int, width: int, rng: Random) -> tuple[SceneFrame, npt.NDArray[np.uint8]]:
    """Returns the scene of a view, and its preprocessed image height×width×3 RGB; see `photographed_view`."""
    frame, image = photographed_view(view, rng)
    rows, columns = frame.class_ids.shape
    return frame, apply(image, plan(Resize.CROP, rows, columns, height, width))


def photographed_view(view: DriveView, rng: Random) -> tuple[SceneFrame, npt.NDArray[np.uint8]]:
    """Returns the scene of a view, and the image of the camera in RGB, at full or half the sensor's resolution.

    `rng` determines the camera's noise and the demosaicing method.
    """
    drive, sensor = _drive(view.seed, view.weather, static_camera=view.static_camera)
    frame = drive.render(view.time_s)
    mosaic = sensor.capture(frame.rgb, rng.randrange(10_000))
    method = rng.choice(("binning", "binning", "bilinear", "edge-aware"))
    return frame, to_colour(mosaic, Layout.BAYER_RGGB8, Layout.RGB8, method)


@lru_cache(maxsize=4)
def _drive(seed: int, weather: str, *, static_camera: bool) -> tuple[Drive, Sensor]:
    """Returns a drive and its camera; cameras differ in noise, vignetting and drift."""
    rng = Random(f"camera/{seed}")
    sensor = Sensor(
        seed,
        Layout.BAYER_RGGB8,
        noise=rng.uniform(0.6, 1.4),
        vignetting=rng.uniform(0.1, 0.35),
        drift=rng.uniform(0.04, 0.12),
    )
    return Drive(seed, weather=weather, static_camera=static_camera), sensor


def _views(count: int, views_per_drive: int, first_seed: int, weathers: tuple[str, ...]) -> list[DriveView]:
    views = []
    for index in range(count):
        drive, position = divmod(index, views_per_drive)
        seed = first_seed + drive
        # The offset by seed varies the times of the views within one weather.
        time_s = position * _VIEW_SPACING_S + seed % 13 * 0.5
        views.append(DriveView(seed, weathers[drive % len(weathers)], time_s))
    return views
