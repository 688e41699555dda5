"""Ray Serve: one replica behind its HTTP proxy, on a cluster of only this machine."""

import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import ray
from ray import serve
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from bench.peers.function import INFERENCE_HEADER, Function


class Road:
    """The function behind POST /."""

    def __init__(self) -> None:
        self._function = Function()

    async def __call__(self, request: Request) -> Response:
        """Returns the mask as the body and the inference time in nanoseconds as a header."""
        mask, took_ns = await run_in_threadpool(self._function.answer, await request.body())
        return Response(mask.tobytes(), headers={INFERENCE_HEADER: str(took_ns)})


class Ready(BaseHTTPRequestHandler):
    """Answers when the replica is ready; the routes of the proxy answer earlier."""

    def do_GET(self) -> None:
        """Returns status 200."""
        self.send_response(200)
        self.end_headers()


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.gettempdir())
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(serve.deployment(Road, max_ongoing_requests=64).bind())
    HTTPServer(("127.0.0.1", int(sys.argv[2])), Ready).serve_forever()
