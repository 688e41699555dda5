"""The first system's vehicle over MQTT (a reproduction of the method): whole pictures as JPEG, coloured JPEGs back.

Nothing tells which frame an answer belongs to, so it can be timed only with one frame in flight: the next picture that
comes in is taken for the answer.
"""

import queue
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click
import numpy as np
import paho.mqtt.client as paho

from bench.baselines.child import file_of, serve
from bench.baselines.mqtt import plain_client
from bench.baselines.mqtt.images import in_colour, read
from bench.load.playback import BenchError
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2


class Publisher:
    """Sends a frame when it is told to, and takes the next picture for its answer."""

    def __init__(self, port: int, bag: Path, count: int, *, answer_s: float = 120.0) -> None:
        self._answer_s = answer_s
        self._frames = read(bag, count)
        self._answers: queue.SimpleQueue[tuple[bytes, int, int]] = queue.SimpleQueue()
        self._client = plain_client.connected(port, plain_client.MASKS, self._answered)

    def send(self, errand: Mapping[str, Any]) -> Mapping[str, float]:
        """Send frame `frame`, wait for the picture that comes back, and tell what took how long.

        `keep`: a folder that receives both pictures, or None.

        Raises:
            BenchError: none comes back.
        """
        number = int(errand["frame"])
        begun_ns = perf_counter_ns()
        colour = in_colour(self._frames[number % len(self._frames)], Layout.BGR8)
        demosaiced_ns = perf_counter_ns()
        _, encoded = cv2.imencode(".jpg", colour)
        picture = encoded.tobytes()
        encoded_ns = perf_counter_ns()
        self._client.publish(plain_client.FRAMES, picture)
        try:
            answer, returned_ns, decoded_ns = self._answers.get(timeout=self._answer_s)
        except queue.Empty:  # QoS 0 sends nothing again.
            raise BenchError(
                f"no picture came back for frame {number} within {self._answer_s:g} s: run it again"
            ) from None
        if errand.get("keep"):
            folder = Path(errand["keep"])
            file_of(folder, "sent", number).write_bytes(picture)
            file_of(folder, "returned", number).write_bytes(answer)
        return {
            "demosaiced": (demosaiced_ns - begun_ns) / 1e6,
            "encoded": (encoded_ns - demosaiced_ns) / 1e6,
            "away": (returned_ns - encoded_ns) / 1e6,
            "mask_decoded": (decoded_ns - returned_ns) / 1e6,
            "total": (decoded_ns - begun_ns) / 1e6,
            "bytes_up": len(picture),
            "bytes_down": len(answer),
        }

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _answered(self, _: paho.Client, answer: bytes) -> None:
        """A picture came in; runs on the network thread, which decodes it, as the original's did."""
        returned_ns = perf_counter_ns()
        cv2.imdecode(np.frombuffer(answer, np.uint8), cv2.IMREAD_COLOR)
        self._answers.put((answer, returned_ns, perf_counter_ns()))


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--bag", type=click.Path(path_type=Path), required=True)
@click.option("--count", type=int, required=True)
def main(port: int, bag: Path, count: int) -> None:
    """Send frames as told, until the standard input ends."""
    serve(Publisher(port, bag, count).send)


if __name__ == "__main__":
    main()
