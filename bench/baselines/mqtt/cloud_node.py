"""Child process that reproduces the first system's cloud node over MQTT: all work is done in paho's callback.

An image is decoded, cropped to the model's input, inferred with `Session.run`, coloured with a palette, encoded as JPEG and
published before the network thread reads its socket again. Only the times of the last frame are kept.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click
import numpy as np
import paho.mqtt.client as paho

from bench.baselines.child import serve
from bench.baselines.mqtt import plain_client
from bench.baselines.mqtt.images import fit
from bench.baselines.mqtt.palette import encode_mask, palette_of
from bench.engines.tensorflow_variants import VARIANTS, open_variant
from cloud.models.repository import Repository
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard

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
        begin_ns = perf_counter_ns()
        colour = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        decoded_ns = perf_counter_ns()
        cropped = fit(np.asarray(colour, np.uint8), self._card.height, self._card.width)
        cropped_ns = perf_counter_ns()
        mask = self._run(cropped[None])[0]
        inferred_ns = perf_counter_ns()
        reply = encode_mask(mask.astype(np.uint8, copy=False), self._palette)
        end_ns = perf_counter_ns()
        self._times_ms = {
            "decoded": (decoded_ns - begin_ns) / 1e6,
            "resized": (cropped_ns - decoded_ns) / 1e6,
            "inferred": (inferred_ns - cropped_ns) / 1e6,
            "painted": (end_ns - inferred_ns) / 1e6,
            "in_callback": (end_ns - begin_ns) / 1e6,
        }
        client.publish(plain_client.MASKS, reply)

    def last_times(self, _request: Mapping[str, Any]) -> Mapping[str, float]:
        """Returns the times of the last frame in milliseconds."""
        return self._times_ms


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--models", type=click.Path(path_type=Path), required=True)
@click.option("--model", required=True)
def main(port: int, models: Path, model: str) -> None:
    """Reply to images, and report the times of the last one per request, until the standard input is closed."""
    node = CallbackNode(models, model)
    plain_client.connect(port, plain_client.FRAMES, node.on_image)
    serve(node.last_times)


if __name__ == "__main__":
    main()
