"""MLServer: a custom model in the server's process (`parallel_workers: 0`).

The image and the mask are one BYTES element each, because MLServer converts numbers to a Python list of pixels.
"""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from starlette.concurrency import run_in_threadpool

from bench.peers.function import MASK_OUTPUT, TOOK_OUTPUT, Function


class Road(MLModel):  # type: ignore[misc]  # MLServer is Any to Skylane's environment.
    """The function behind the Open Inference Protocol."""

    async def load(self) -> bool:
        """Loads the function."""
        self._function = Function()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Returns the mask and the inference time in nanoseconds."""
        (data,) = payload.inputs[0].data
        mask, took_ns = await run_in_threadpool(self._function.answer, data)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                ResponseOutput(name=MASK_OUTPUT, shape=[1], datatype="BYTES", data=[mask.tobytes()]),
                ResponseOutput(name=TOOK_OUTPUT, shape=[1], datatype="INT64", data=[took_ns]),
            ],
        )
