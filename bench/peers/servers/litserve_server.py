"""LitServe: one worker process, whose requests and replies are plain HTTP bodies."""

import sys
from typing import Annotated

import litserve
import numpy as np
from fastapi import Body, Response
from numpy.typing import NDArray

from bench.peers.function import INFERENCE_HEADER, Function

Answer = tuple[NDArray[np.uint8], int]


class Road(litserve.LitAPI):  # type: ignore[misc]  # LitServe is Any to Skylane's environment.
    """The function behind POST /predict."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe passes the processor.
        """Loads the function in the worker process."""
        self._function = Function()

    def decode_request(self, request: Annotated[bytes, Body(media_type="application/octet-stream")]) -> bytes:
        """Returns the unchanged body: the pixels of an image, or a JPEG."""
        return request

    def predict(self, data: bytes) -> Answer:
        """Returns the answer, such as a mask, and the inference time in nanoseconds."""
        return self._function.answer(data)

    def encode_response(self, output: Answer) -> Response:
        """Returns the bytes of the answer as the body and the inference time in nanoseconds as a header."""
        mask, took_ns = output
        return Response(mask.tobytes(), headers={INFERENCE_HEADER: str(took_ns)})


if __name__ == "__main__":
    server = litserve.LitServer(Road(), accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
