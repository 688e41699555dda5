"""Child process that reproduces the first system's vehicle over MQTT: whole images as JPEG, coloured JPEG masks back.

A reply does not contain its frame, so it can only be timed with one frame in flight: the next image is taken as the reply.
"""

import queue
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click
import numpy as np
import paho.mqtt.client as paho

from bench.baselines.child import image_file, serve
from bench.baselines.mqtt import plain_client
from bench.baselines.mqtt.images import read, to_colour_image
from bench.harness.comparison import BenchError
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2


class Publisher:
    """Sends one frame per request, and takes the next image as the reply."""

    def __init__(self, port: int, bag: Path, count: int, *, reply_timeout_s: float = 120.0) -> None:
        self._reply_timeout_s = reply_timeout_s
        self._frames = read(bag, count)
        self._replies: queue.SimpleQueue[tuple[bytes, int, int]] = queue.SimpleQueue()
        self._client = plain_client.connect(port, plain_client.MASKS, self._on_image)

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Sends frame `frame` and waits for the reply; returns durations in milliseconds and sizes in bytes.

        `keep`: folder that receives both images, or None.

        Raises:
            BenchError: no image arrived in time.
        """
        number = int(request["frame"])
        begin_ns = perf_counter_ns()
        colour = to_colour_image(self._frames[number % len(self._frames)], Layout.BGR8)
        demosaiced_ns = perf_counter_ns()
        _, encoded = cv2.imencode(".jpg", colour)
        image = encoded.tobytes()
        encoded_ns = perf_counter_ns()
        self._client.publish(plain_client.FRAMES, image)
        try:
            reply, returned_ns, decoded_ns = self._replies.get(timeout=self._reply_timeout_s)
        except queue.Empty:  # QoS 0 does not retransmit.
            raise BenchError(
                f"no image was returned for frame {number} within {self._reply_timeout_s:g} s: run it again"
            ) from None
        if request.get("keep"):
            folder = Path(request["keep"])
            image_file(folder, "sent", number).write_bytes(image)
            image_file(folder, "returned", number).write_bytes(reply)
        return {
            "demosaiced": (demosaiced_ns - begin_ns) / 1e6,
            "encoded": (encoded_ns - demosaiced_ns) / 1e6,
            "away": (returned_ns - encoded_ns) / 1e6,
            "mask_decoded": (decoded_ns - returned_ns) / 1e6,
            "total": (decoded_ns - begin_ns) / 1e6,
            "bytes_up": len(image),
            "bytes_down": len(reply),
        }

    def close(self) -> None:
        """Disconnects from the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_image(self, _: paho.Client, reply: bytes) -> None:
        """Handles a reply; decodes it on the network thread, as the original did."""
        returned_ns = perf_counter_ns()
        cv2.imdecode(np.frombuffer(reply, np.uint8), cv2.IMREAD_COLOR)
        self._replies.put((reply, returned_ns, perf_counter_ns()))


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--bag", type=click.Path(path_type=Path), required=True)
@click.option("--count", type=int, required=True)
def main(port: int, bag: Path, count: int) -> None:
    """Send one frame per request until the standard input is closed."""
    serve(Publisher(port, bag, count).send)


if __name__ == "__main__":
    main()
