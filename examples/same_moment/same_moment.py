"""Draws one moment of a synthetic drive: held, warped, fused and true masks.

`PYTHONPATH=. python examples/same_moment/same_moment.py PICTURE`, in the checkout, as it uses the recorded drives of the benches.
The mask of the remote model is 200 ms old, as after a slow round trip. The presenters are those of `skylane edge play --present`.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

from bench.freshness.recording import RecordedDrivePlan, record_drive
from bench.freshness.replay import outputs
from edge.presenting.presenter import PRESENTERS, PresenterParts
from modelling.evaluation.streaming import StreamingScores
from shared.imaging.labels import overlay
from shared.registry import load

DRIVE, MOMENT, AGE, RATE_HZ = 0, 8, 2, 10  # Number of a drive that no model was trained on; frames.
WIDTH, CAPTION, FONT_SCALE = 640, 44, 0.72  # Of a panel, pixels.
WHITE, BLACK = (255, 255, 255), (30, 30, 30)

drive = record_drive(RecordedDrivePlan(DRIVE, RATE_HZ, MOMENT + 1, Path("models"), "road-small", "road-tiny"))
image, truth, local = drive.images[MOMENT], drive.truths[MOMENT], drive.local[MOMENT].result


def presented(name: str) -> np.ndarray:
    """Returns the mask that a presenter gives at the moment, if each result arrives two frames late."""
    parts = PresenterParts(drive.card, drive.local_output, local_card=drive.local_card)
    sources = [frame - AGE if frame >= AGE else None for frame in range(MOMENT + 1)]
    *_, last = outputs(drive, load("presenter", PRESENTERS, name)(parts), sources)
    return last.result


def panel(mask: np.ndarray | None, title: str) -> np.ndarray:
    """Returns the image of the moment with a mask on it, above its title and the mask's mean IoU."""
    drawn = image if mask is None else overlay(image, mask, drive.card.labels, 0.55)
    if mask is not None and mask is not truth:
        scores = StreamingScores(drive.card.labels.names)
        scores.add(truth, mask, origin="", age_ns=0)
        title = f"{title}: mean IoU {scores.accuracy():.2f}"
    drawn = cv2.resize(drawn, (WIDTH, WIDTH * drawn.shape[0] // drawn.shape[1]), interpolation=cv2.INTER_AREA)
    strip = np.full((CAPTION, WIDTH, 3), WHITE, np.uint8)
    cv2.putText(strip, title, (6, 30), cv2.FONT_HERSHEY_SIMPLEX, FONT_SCALE, BLACK, 2, cv2.LINE_AA)
    return cv2.copyMakeBorder(np.vstack((drawn, strip)), 6, 0, 6, 6, cv2.BORDER_CONSTANT, value=WHITE)


rows = (
    (panel(None, "the camera's image of now"), panel(truth, "the true labels of now")),
    (panel(presented("hold"), "held for 200 ms"), panel(presented("warp"), "warped to now")),
    (panel(local, "local model alone"), panel(presented("fuse"), "fused")),
)
sheet = np.vstack([np.hstack(row) for row in rows])
cv2.imwrite(sys.argv[1], sheet[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 82])
