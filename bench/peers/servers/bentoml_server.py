"""BentoML: one worker process, with an ASGI route, because the typed routes of BentoML accept bytes only as files.

`bentoml serve bench.peers.servers.bentoml_server:Road` runs it.
"""

import bentoml
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from bench.peers.function import INFERENCE_HEADER, Function

app = Starlette()


@bentoml.service(workers=1, threads=1)
@bentoml.asgi_app(app)
class Road:
    """The function behind POST /predict."""

    def __init__(self) -> None:
        function = Function()

        async def predict(request: Request) -> Response:
            mask, took_ns = await run_in_threadpool(function.answer, await request.body())
            return Response(mask.tobytes(), headers={INFERENCE_HEADER: str(took_ns)})

        app.add_route("/predict", predict, methods=["POST"])
