"""MLServer: a model of its own kind, in the server's process (`parallel_workers: 0`).

The picture and the mask are one BYTES element each: of numbers MLServer makes a Python list, an element a pixel.
"""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from starlette.concurrency import run_in_threadpool

from bench.peers.rig.function import MASK_OUTPUT, TOOK_OUTPUT, Function


class Road(MLModel):  # type: ignore[misc]  # MLServer is Any to Skylane's environment.
    """The function behind the Open Inference Protocol."""

    async def load(self) -> bool:
        """Load the function."""
        self._function = Function()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The mask, and the nanoseconds it took."""
        (data,) = payload.inputs[0].data
        mask, took_ns = await run_in_threadpool(self._function.answer, data)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                ResponseOutput(name=MASK_OUTPUT, shape=[1], datatype="BYTES", data=[mask.tobytes()]),
                ResponseOutput(name=TOOK_OUTPUT, shape=[1], datatype="INT64", data=[took_ns]),
            ],
        )
