"""Child process that reproduces the first system's vehicle with TensorFlow Serving, which crops frames to the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click

from bench.baselines.child import serve
from bench.baselines.mqtt.images import fit, read, to_colour_image
from bench.baselines.serving.clients import CLIENTS, GrpcClient, RestClient, Timer, conversion_ms
from cloud.models.repository import Repository
from shared.imaging.frames import Frame
from shared.messages.model_card import ModelCard


class ServingVehicle:
    """Prepares one frame per request, sends it and decodes the mask."""

    def __init__(self, client: RestClient | GrpcClient, card: ModelCard, frames: Sequence[Frame]) -> None:
        self._client = client
        self._card = card
        self._frames = frames

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Sends frame `frame`; returns durations in milliseconds."""
        begin_ns = perf_counter_ns()
        timer = Timer()
        colour = to_colour_image(self._frames[int(request["frame"]) % len(self._frames)], self._card.layout)
        timer.stop("demosaiced")
        image = fit(colour, self._card.height, self._card.width)
        timer.stop("preprocessed")
        reply = self._client.predict(image, timer)
        total_ms = (perf_counter_ns() - begin_ns) / 1e6
        inferred_ms = reply.served_ms["inferred"]
        link_ms = timer.durations_ms.pop("away") - inferred_ms  # The link, and the endpoint's own work.
        parts = {**timer.durations_ms, "link_and_door": link_ms, "in_lists": conversion_ms(timer.durations_ms)}
        return {**parts, "inferred": inferred_ms, "total": total_ms}


@click.command()
@click.option("--way", type=click.Choice([*CLIENTS]), required=True)
@click.option("--address", required=True)
@click.option("--models", type=click.Path(path_type=Path), required=True)
@click.option("--model", required=True)
@click.option("--output", required=True)
@click.option("--bag", type=click.Path(path_type=Path), required=True)
@click.option("--count", type=int, required=True)
def main(way: str, address: str, models: Path, model: str, *, output: str, bag: Path, count: int) -> None:
    """Send one frame per request until the standard input is closed."""
    client = CLIENTS[way](address, model, output)
    serve(ServingVehicle(client, Repository(models).find(model).card(), read(bag, count)).send)


if __name__ == "__main__":
    main()
