"""gRPC callers that cancel their calls, for each service."""

import threading
from typing import Any

import grpc
import pytest

from cloud.gateway.settings import GatewaySettings
from shared.encoding.protobuf import message_class
from shared.encoding.protobuf_wire import pack
from shared.messages.frame import pack_frame
from tests.support.gateway import WAIT_S, Gate, open_gateway, watch_submissions
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

_PIXELS = bytes(HEIGHT * WIDTH * 3)
_SHAPE = (1, HEIGHT, WIDTH, 3)


def _tensorflow_serving() -> bytes:
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "tiny"
    tensor = request.inputs["input"]
    tensor.dtype, tensor.tensor_content = 4, _PIXELS  # DT_UINT8.
    for size in _SHAPE:
        tensor.tensor_shape.dim.add(size=size)
    return bytes(request.SerializeToString())


def _open_inference() -> bytes:
    request = message_class("inference.ModelInferRequest")(model_name="tiny", raw_input_contents=[_PIXELS])
    request.inputs.add(name="input", datatype="UINT8", shape=_SHAPE)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("method", "request_bytes"),
    [
        ("tensorflow.serving.PredictionService/Predict", _tensorflow_serving()),
        ("inference.GRPCInferenceService/ModelInfer", _open_inference()),
        ("skylane.v1.Worker/Answer", pack(pack_frame(frame(1)))),
    ],
)
def test_the_frame_of_a_cancelled_call_is_cancelled(
    method: str, request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise delay the frames of other callers."""
    gate, cancelled = Gate(), threading.Event()
    gate.close()
    submitted = watch_submissions(monkeypatch)
    with (
        open_gateway(model(gate), gateway=GatewaySettings(grpc="127.0.0.1:0")) as worker,
        grpc.insecure_channel(worker.grpc) as channel,
    ):
        try:
            call: Any = channel.unary_unary(f"/{method}")
            pending = call.future(request_bytes, timeout=WAIT_S)
            future = submitted.get(timeout=WAIT_S)
            future.add_done_callback(lambda _: cancelled.set())
            pending.cancel()
            assert cancelled.wait(WAIT_S)
            assert future.cancelled()
        finally:
            gate.open()
