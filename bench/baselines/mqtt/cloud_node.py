"""The first system's cloud node over MQTT (a reproduction of the method): all work is done inside paho's callback.

A picture is decoded, cut to the model's input, inferred by `Session.run`, painted by a palette, encoded as JPEG and
published, before the network thread looks at its socket again. One set of times is kept, and the next frame overwrites it.
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
from bench.baselines.mqtt.images import fitted
from bench.baselines.mqtt.palette import painted, palette_of
from bench.engines.tensorflow_variants import WAYS, opened
from cloud.models.repository import Repository
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard

_WARM_UP = 3


class CallbackNode:
    """Answers a picture by a picture, in the callback."""

    def __init__(self, models: Path, model: str) -> None:
        self._card: ModelCard = Repository(models).card(model)
        self._run = opened(WAYS["Session.run"], models, model)
        self._palette = palette_of(self._card.labels)
        self._times_ms: dict[str, float] = {}
        for _ in range(_WARM_UP):
            self._run(np.zeros((1, self._card.height, self._card.width, 3), np.uint8))

    def answer(self, client: paho.Client, picture: bytes) -> None:
        """A picture came in; runs on the network thread, which does nothing else meanwhile."""
        begun_ns = perf_counter_ns()
        colour = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR_RGB)
        decoded_ns = perf_counter_ns()
        cut = fitted(np.asarray(colour, np.uint8), self._card.height, self._card.width)
        cut_ns = perf_counter_ns()
        mask = self._run(cut[None])[0]
        inferred_ns = perf_counter_ns()
        answer = painted(mask.astype(np.uint8, copy=False), self._palette)
        done_ns = perf_counter_ns()
        self._times_ms = {
            "decoded": (decoded_ns - begun_ns) / 1e6,
            "resized": (cut_ns - decoded_ns) / 1e6,
            "inferred": (inferred_ns - cut_ns) / 1e6,
            "painted": (done_ns - inferred_ns) / 1e6,
            "in_callback": (done_ns - begun_ns) / 1e6,
        }
        client.publish(plain_client.MASKS, answer)

    def last(self, _errand: Mapping[str, Any]) -> Mapping[str, float]:
        """The times of the last frame, which is all that is known."""
        return self._times_ms


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--models", type=click.Path(path_type=Path), required=True)
@click.option("--model", required=True)
def main(port: int, models: Path, model: str) -> None:
    """Answer pictures, and tell the times of the last one when asked, until the standard input ends."""
    node = CallbackNode(models, model)
    plain_client.connected(port, plain_client.FRAMES, node.answer)
    serve(node.last)


if __name__ == "__main__":
    main()
