"""Draws one moment of a synthetic drive: held, warped, fused and true masks. `python same_moment.py PICTURE`, in the checkout.

The mask of the remote model is 200 ms old, as after a slow round trip. The presenters are those of `skylane edge play --present`.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

from cloud.models.loader import ModelLoader
from edge.presenting.presenter import ArrivedResult, PresenterParts, Tick
from edge.presenting.table import PRESENTERS
from modelling.evaluation.streaming import StreamingScores
from rosbag_tools.drive.scene import Drive
from rosbag_tools.drive.sensor import Sensor
from shared.imaging import geometry
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import overlay
from shared.models.repository import Repository
from shared.registry import load

SEED, WEATHER, MOMENT_S = 700, "clear", 1.4  # The models and the fusion were made on other drives.
RATE_HZ, AGE_TICKS = 10, 2
WIDTH, CAPTION, FONT_SCALE = 640, 44, 0.72  # Of a panel, pixels.

drive = Drive(SEED, weather=WEATHER)
sensor = Sensor(SEED, Layout.BAYER_RGGB8)
loader = ModelLoader(Repository(Path("models")))
remote, local = loader.open("road-small"), loader.open("road-tiny")
card = remote.card
plan = geometry.plan(Resize.CROP, 1216, 1936, card.height, card.width)


def tick_at(number: int) -> tuple[Tick, np.ndarray]:
    """Returns a frame of the drive as the model's input, and its true labels in the same size."""
    scene = drive.render(number / RATE_HZ)
    raw = sensor.capture(scene.rgb, number)
    image = geometry.apply(to_colour(raw, Layout.BAYER_RGGB8, Layout.RGB8, "binning"), plan)
    truth = cv2.resize(scene.class_ids, image.shape[1::-1], interpolation=cv2.INTER_NEAREST_EXACT)
    return Tick(number, round(number / RATE_HZ * 1e9), image, plan), truth


def local_mask(tick: Tick) -> np.ndarray:
    """Returns the mask of the vehicle's own model."""
    small = cv2.resize(tick.image, (local.card.width, local.card.height), interpolation=cv2.INTER_AREA)
    mask = local.predict(small[np.newaxis])[0].astype(np.uint8)
    return cv2.resize(mask, tick.image.shape[1::-1], interpolation=cv2.INTER_NEAREST)


def panel(image: np.ndarray, mask: np.ndarray | None, title: str) -> np.ndarray:
    """Returns an image with a mask on it, above its title and the mean IoU against the true labels."""
    drawn = image if mask is None else overlay(image, mask, card.labels, 0.55)
    if mask is not None and mask is not truth:
        scores = StreamingScores(card.labels.names)
        scores.add(truth, mask, origin="", age_ns=0)
        title = f"{title}: mean IoU {scores.mean_iou():.2f}"
    drawn = cv2.resize(drawn, (WIDTH, WIDTH * drawn.shape[0] // drawn.shape[1]), interpolation=cv2.INTER_AREA)
    strip = np.full((CAPTION, WIDTH, 3), 255, np.uint8)
    cv2.putText(strip, title, (6, 30), cv2.FONT_HERSHEY_SIMPLEX, FONT_SCALE, (30, 30, 30), 2, cv2.LINE_AA)
    return cv2.copyMakeBorder(np.vstack((drawn, strip)), 6, 0, 6, 6, cv2.BORDER_CONSTANT, value=(255, 255, 255))


now = round(MOMENT_S * RATE_HZ)
parts = PresenterParts(card, local_mask)
presenters = {name: load("presenter", PRESENTERS, name)(parts) for name in ("hold", "warp", "fuse")}
for number in range(now - 2 * AGE_TICKS, now + 1):
    tick, truth = tick_at(number)
    result = remote.predict(tick.image[np.newaxis])[0].astype(np.uint8)
    if number == now - AGE_TICKS:
        newest = ArrivedResult(tick.sequence, tick.due_ns, result)
    held, warped, fused = (
        presenter.present(tick, newest if number == now else None).result for presenter in presenters.values()
    )
rows = (
    (panel(tick.image, None, "the camera's image of now"), panel(tick.image, truth, "the true labels of now")),
    (panel(tick.image, held, "held for 200 ms"), panel(tick.image, warped, "warped to now")),
    (panel(tick.image, local_mask(tick), "local model alone"), panel(tick.image, fused, "fused")),
)
sheet = np.vstack([np.hstack(row) for row in rows])
cv2.imwrite(sys.argv[1], sheet[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 82])
