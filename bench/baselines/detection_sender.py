"""Child process that reproduces the fifth system's sender: one image after the other, each over a new connection.

It uploads a file to `/api/detect`, waits for the reply, and continues with the next file. Frames are encoded before they are
timed, because the original sent a folder of JPEG files.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import requests

from bench.baselines.mqtt.images import read, to_colour_image
from bench.baselines.serving.clients import REPLY_TIMEOUT_S, check_status, served_ms
from ops.processes.child import serve
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2


class DetectionSender:
    """Uploads one image per request."""

    def __init__(self, address: str, model: str, bag: str, count: int) -> None:
        self._url = f"http://{address}/api/detect"
        self._model = model
        self._files = [
            cv2.imencode(".jpg", to_colour_image(frame, Layout.BGR8))[1].tobytes() for frame in read(Path(bag), count)
        ]

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Uploads file `frame`; returns the total and the inference time.

        Raises:
            BenchError: the endpoint rejected it.
        """
        file = self._files[int(request["frame"]) % len(self._files)]
        begin_ns = perf_counter_ns()
        response = requests.post(
            self._url,
            params={"model": self._model},
            files={"file": ("frame.jpg", file, "image/jpeg")},
            timeout=REPLY_TIMEOUT_S,
        )
        check_status(response)
        response.json()
        total_ms = (perf_counter_ns() - begin_ns) / 1e6
        return {"inferred": served_ms(response.headers.get("Server-Timing", ""))["inferred"], "total": total_ms}


if __name__ == "__main__":
    serve(lambda **settings: DetectionSender(**settings).send)
