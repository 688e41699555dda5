"""A frontend is added with one file, this one, and one line in the table: here a TCP socket that takes raw images."""

import socket
from socketserver import StreamRequestHandler, ThreadingTCPServer

import numpy as np
import pytest

from cloud.frontend import FRONTENDS, Frontend
from cloud.node import CloudNode
from shared import clock
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, Status
from shared.network.endpoint import Endpoint
from shared.registry import Entry
from tests.pipeline.conftest import model, models  # noqa: F401  Fixtures.
from tests.pipeline.rig import HEIGHT, WIDTH, direct, memory_bus, noise, serving

IMAGE_BYTES = HEIGHT * WIDTH * 3


class SocketFrontend(Frontend):
    """Answers each RGB image of 64×96 with its mask, one byte a pixel, or with nothing if it is refused."""

    def __init__(self, worker: CloudNode, address: str) -> None:
        class Handler(StreamRequestHandler):
            def handle(self) -> None:
                while len(image := self.rfile.read(IMAGE_BYTES)) == IMAGE_BYTES:
                    self.wfile.write(_mask(worker, image))

        endpoint = Endpoint.parse(address, listens=True)
        self._server = ThreadingTCPServer((endpoint.host, endpoint.port), Handler)
        self.port: int = self._server.server_address[1]
        self._worker = worker

    def start(self) -> None:
        """See Frontend."""
        self._worker.threads.start("socket", self._server.serve_forever)

    def close(self) -> None:
        """See Frontend."""
        self._server.shutdown()
        self._server.server_close()


def _mask(worker: CloudNode, image: bytes) -> bytes:
    """Submits an image to the queue that all frontends share, and waits for its mask."""
    (card,) = worker.submission.cards()
    message = FrameMessage(
        id=worker.submission.new_id("socket", "camera"),
        model=card.name,
        layout=Layout.RGB8,
        shape=(HEIGHT, WIDTH, 3),
        codec="raw",
        geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
        stamp_ns=0,
        data=image,
    )
    reply = worker.submission.put(message, received_ns=clock.now_ns(), max_reply_bytes=1 << 20).result().message
    if reply.status is not Status.ANSWERED:
        return b""
    return image_codecs.decode_mask(reply.data, reply.codec, (HEIGHT, WIDTH)).tobytes()


def test_a_new_frontend_serves_frames(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """`--listen socket=HOST:PORT` starts it beside the others; it counts and admits its frames as they do."""
    monkeypatch.setitem(FRONTENDS, "socket", Entry(f"{__name__}:SocketFrontend", "cloud"))
    with memory_bus() as bus, serving(lambda _: bus, model, listen=("socket=127.0.0.1:0",)) as node:
        with socket.create_connection(("127.0.0.1", node.ports["socket"])) as caller, caller.makefile("rb") as replies:
            for seed in range(3):
                rgb = noise(seed, (HEIGHT, WIDTH, 3))
                caller.sendall(rgb.tobytes())
                mask = np.frombuffer(replies.read(HEIGHT * WIDTH), np.uint8).reshape(HEIGHT, WIDTH)
                np.testing.assert_array_equal(mask, direct(model, rgb))
        assert node.counts["answered"] == 3
