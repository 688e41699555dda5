"""Child process that reproduces the first system's cloud node over MQTT: all work is done in paho's callback.

An image is decoded, cropped to the model's input, inferred with `Session.run`, coloured with a palette, encoded as JPEG and
published before the network thread reads its socket again. Only the times of the last frame are kept.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as paho

from bench.baselines.mqtt import plain_client
from bench.baselines.mqtt.images import Timer, encode_mask, fit, palette_of
from bench.engines.tensorflow_variants import VARIANTS, open_variant
from ops.processes.child import serve
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository

_WARM_UP = 3


class CallbackNode:
    """Replies to an image with an image, in the callback."""

    def __init__(self, models: Path, model: str) -> None:
        self._card: ModelCard = Repository(models).find(model).card()
        self._run = open_variant(VARIANTS["Session.run"], models, model)
        self._palette = palette_of(self._card.labels)
        self._times_ms: dict[str, float] = {}
        for _ in range(_WARM_UP):
            self._run(np.zeros((1, self._card.height, self._card.width, 3), np.uint8))

    def on_image(self, client: paho.Client, data: bytes) -> None:
        """Handles an image; blocks the network thread."""
        timer = Timer()
        colour = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        timer.stop("decoded")
        cropped = fit(np.asarray(colour, np.uint8), self._card.height, self._card.width)
        timer.stop("resized")
        mask = self._run(cropped[None])[0]
        timer.stop("inferred")
        reply = encode_mask(mask.astype(np.uint8, copy=False), self._palette)
        timer.stop("painted")
        self._times_ms = {**timer.durations_ms, "in_callback": timer.total_ms}
        client.publish(plain_client.MASKS, reply)

    def last_times(self, _request: Any) -> Mapping[str, float]:
        """Returns the times of the last frame in milliseconds."""
        return self._times_ms


def start(*, port: int, models: str, model: str) -> Callable[[Any], Mapping[str, float]]:
    """Starts to answer images; returns the function that reports the times of the last one."""
    node = CallbackNode(Path(models), model)
    plain_client.connect(port, plain_client.FRAMES, node.on_image)
    return node.last_times


if __name__ == "__main__":
    serve(start)
