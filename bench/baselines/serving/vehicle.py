"""The first system's vehicle with TensorFlow Serving (a reproduction of the method): it cuts frames to the model itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click

from bench.baselines.child import serve
from bench.baselines.mqtt.images import fitted, in_colour, read
from bench.baselines.serving.clients import CLIENTS, GrpcClient, LapTimer, RestClient, in_lists
from cloud.models.repository import Repository
from shared.imaging.frames import Frame
from shared.messages.model_card import ModelCard


class ServingVehicle:
    """Makes a frame ready, has it answered and reads the mask, one frame after the other."""

    def __init__(self, client: RestClient | GrpcClient, card: ModelCard, frames: Sequence[Frame]) -> None:
        self._client = client
        self._card = card
        self._frames = frames

    def send(self, errand: Mapping[str, Any]) -> Mapping[str, float]:
        """Have frame `frame` answered, and tell what took how long."""
        begun_ns = perf_counter_ns()
        timer = LapTimer()
        colour = in_colour(self._frames[int(errand["frame"]) % len(self._frames)], self._card.layout)
        timer.lap("demosaiced")
        picture = fitted(colour, self._card.height, self._card.width)
        timer.lap("preprocessed")
        answer = self._client.predict(picture, timer)
        total_ms = (perf_counter_ns() - begun_ns) / 1e6
        inferred_ms = answer.served_ms["inferred"]
        beside_ms = timer.took_ms.pop("away") - inferred_ms  # The link, and the door's own work.
        parts = {**timer.took_ms, "link_and_door": beside_ms, "in_lists": in_lists(timer.took_ms)}
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
    """Send frames as told, until the standard input ends."""
    client = CLIENTS[way](address, model, output)
    serve(ServingVehicle(client, Repository(models).card(model), read(bag, count)).send)


if __name__ == "__main__":
    main()
