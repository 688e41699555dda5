"""Child process that reproduces a server of Distributed NoScope: the reference network, one image after the other.

It sends its port to the parent, and serves until the parent closes its standard input. The network is the worker's: it gives
the same answers and takes the same fixed time.
"""

import asyncio
import sys
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from bench.baselines.noscope.messages import RawImage, read_request, write_reply
from ops.processes.child import reply, settings
from ops.processes.fixed_time import open_fixed_time
from shared.inference.model import Model


class ReferenceServer:
    """Answers images with the scores of the reference network."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until the client closes it."""
        while (request := await read_request(reader)) is not None:
            write_reply(writer, *self._infer(request))
            await writer.drain()
        writer.close()

    def _infer(self, request: RawImage) -> tuple[float, float]:
        """Returns the score of the second label, and the time of the inference in milliseconds."""
        image = np.frombuffer(request.pixels, np.uint8).reshape(request.shape)
        begin_ns = perf_counter_ns()
        scores = self._model.infer(image[np.newaxis])["scores"][0]  # Blocks the server, as the original's network did.
        return float(scores[1]), (perf_counter_ns() - begin_ns) / 1e6


async def serve(models: str, model: str, answers: list[str], inference_ms: float) -> None:
    """Serves until the end of the standard input."""
    with open_fixed_time(Path(models), model, [Path(file) for file in answers], inference_ms) as opened:
        server = await asyncio.start_server(ReferenceServer(opened).handle, "127.0.0.1", 0)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
        async with server:
            reply({"port": server.sockets[0].getsockname()[1]})
            await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(**settings()))
