"""Child process that reproduces the first system's vehicle with TensorFlow Serving, which crops frames to the model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.baselines.mqtt.images import Timer, fit, read, to_colour_image
from bench.baselines.serving.clients import CLIENTS, GrpcClient, RestClient, conversion_ms
from ops.processes.child import serve
from shared.imaging.frames import Frame
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository


class ServingVehicle:
    """Prepares one frame per request, sends it and decodes the mask."""

    def __init__(self, client: RestClient | GrpcClient, card: ModelCard, frames: Sequence[Frame]) -> None:
        self._client = client
        self._card = card
        self._frames = frames

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Sends frame `frame`; returns durations in milliseconds."""
        timer = Timer()
        colour = to_colour_image(self._frames[int(request["frame"]) % len(self._frames)], self._card.layout)
        timer.stop("demosaiced")
        image = fit(colour, self._card.height, self._card.width)
        timer.stop("preprocessed")
        reply = self._client.predict(image, timer)
        total_ms = timer.total_ms
        inferred_ms = reply.served_ms["inferred"]
        link_ms = timer.durations_ms.pop("away") - inferred_ms  # The link, and the endpoint's own work.
        parts = {**timer.durations_ms, "link_and_door": link_ms, "in_lists": conversion_ms(timer.durations_ms)}
        return {**parts, "inferred": inferred_ms, "total": total_ms}


def start(
    *, protocol: str, address: str, models: str, model: str, output: str, bag: str, count: int
) -> Callable[[Mapping[str, Any]], Mapping[str, float]]:
    """Connects the client; returns the function that sends a frame."""
    client = CLIENTS[protocol](address, model, output)
    return ServingVehicle(client, Repository(Path(models)).find(model).card(), read(Path(bag), count)).send


if __name__ == "__main__":
    serve(start)
