"""The fifth system's sender (a reproduction of the method): one picture after the other, each over a connection of its own.

A file is uploaded to `/api/detect`, the answer awaited, the next file taken. Frames are made files before they are timed,
for the original sent a folder of JPEG files.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click
import requests

from bench.baselines.child import serve
from bench.baselines.mqtt.images import in_colour, read
from bench.baselines.serving.clients import served_ms
from bench.load.playback import BenchError
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2

_ANSWER_S = 120.0
_OK = 200


class DetectionSender:
    """Uploads a picture when it is told to."""

    def __init__(self, address: str, model: str, bag: Path, count: int) -> None:
        self._url = f"http://{address}/api/detect"
        self._model = model
        self._files = [cv2.imencode(".jpg", in_colour(frame, Layout.BGR8))[1].tobytes() for frame in read(bag, count)]

    def send(self, errand: Mapping[str, Any]) -> Mapping[str, float]:
        """Have file `frame` answered, and tell what took how long.

        Raises:
            BenchError: the door refused it.
        """
        file = self._files[int(errand["frame"]) % len(self._files)]
        begun_ns = perf_counter_ns()
        response = requests.post(
            self._url,
            params={"model": self._model},
            files={"file": ("frame.jpg", file, "image/jpeg")},
            timeout=_ANSWER_S,
        )
        if response.status_code != _OK:
            raise BenchError(f"{self._url} answered {response.status_code}: {response.text[:200]}")
        response.json()
        total_ms = (perf_counter_ns() - begun_ns) / 1e6
        return {"inferred": served_ms(response.headers.get("Server-Timing", ""))["inferred"], "total": total_ms}


@click.command()
@click.option("--address", required=True)
@click.option("--model", required=True)
@click.option("--bag", type=click.Path(path_type=Path), required=True)
@click.option("--count", type=int, required=True)
def main(address: str, model: str, bag: Path, count: int) -> None:
    """Send files as told, until the standard input ends."""
    serve(DetectionSender(address, model, bag, count).send)


if __name__ == "__main__":
    main()
