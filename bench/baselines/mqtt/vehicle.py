"""Child process that reproduces the first system's vehicle over MQTT: whole images as JPEG, coloured JPEG masks back.

A reply does not contain its frame, so it can only be timed with one frame in flight: the next image is taken as the reply.
"""

import queue
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import paho.mqtt.client as paho

from bench.baselines.mqtt import plain_client
from bench.baselines.mqtt.images import Timer, read, to_colour_image
from ops.processes.child import BenchError, serve
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2


class Publisher:
    """Sends one frame per request, and takes the next image as the reply."""

    def __init__(self, port: int, bag: str, count: int, *, reply_timeout_s: float = 120.0) -> None:
        self._reply_timeout_s = reply_timeout_s
        self._frames = read(Path(bag), count)
        self._replies: queue.SimpleQueue[tuple[bytes, float]] = queue.SimpleQueue()
        self._client = plain_client.connect(port, plain_client.MASKS, self._on_image)

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Sends frame `frame` and waits for the reply; returns durations in milliseconds and sizes in bytes.

        `keep`: folder that receives both images as `sent-N.jpg` and `returned-N.jpg`, or None.

        Raises:
            BenchError: no image arrived in time.
        """
        number = int(request["frame"])
        timer = Timer()
        colour = to_colour_image(self._frames[number % len(self._frames)], Layout.BGR8)
        timer.stop("demosaiced")
        _, encoded = cv2.imencode(".jpg", colour)
        image = encoded.tobytes()
        timer.stop("encoded")
        self._client.publish(plain_client.FRAMES, image)
        try:
            reply, decoded_ms = self._replies.get(timeout=self._reply_timeout_s)
        except queue.Empty:  # QoS 0 does not retransmit.
            raise BenchError(
                f"no image was returned for frame {number} within {self._reply_timeout_s:g} s: run it again"
            ) from None
        timer.stop("away")
        timer.durations_ms["away"] -= decoded_ms
        timer.durations_ms["mask_decoded"] = decoded_ms
        if request.get("keep"):
            folder = Path(request["keep"])
            (folder / f"sent-{number}.jpg").write_bytes(image)
            (folder / f"returned-{number}.jpg").write_bytes(reply)
        sizes = {"bytes_up": len(image), "bytes_down": len(reply)}
        return {**timer.durations_ms, "total": timer.total_ms, **sizes}

    def close(self) -> None:
        """Disconnects from the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_image(self, _: paho.Client, reply: bytes) -> None:
        """Handles a reply; decodes it on the network thread, as the original did."""
        returned_ns = perf_counter_ns()
        cv2.imdecode(np.frombuffer(reply, np.uint8), cv2.IMREAD_COLOR)
        self._replies.put((reply, (perf_counter_ns() - returned_ns) / 1e6))


if __name__ == "__main__":
    serve(lambda **settings: Publisher(**settings).send)
