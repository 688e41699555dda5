"""Authenticator over gRPC that hang up before they are answered, at each service's door."""

import threading
from typing import Any

import grpc
import pytest

from cloud.gateway.settings import GatewaySettings
from shared.encoding.protobuf import message_class
from shared.encoding.protobuf_wire import pack
from shared.messages.frame import pack_frame
from tests.support.gateway import WAIT_S, open_gateway, watch
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
def test_who_hangs_up_is_no_longer_worked_for(
    method: str, request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that nobody waits for would otherwise keep those of others waiting."""
    gate, gone = threading.Event(), threading.Event()
    handed_in = watch(monkeypatch)
    with (
        open_gateway(model(lambda: _wait(gate)), gateway=GatewaySettings(grpc="127.0.0.1:0")) as doors,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        try:
            call: Any = channel.unary_unary(f"/{method}")
            asked = call.future(request_bytes, timeout=WAIT_S)
            future = handed_in.get(timeout=WAIT_S)
            future.add_done_callback(lambda _: gone.set())
            asked.cancel()
            assert gone.wait(WAIT_S)
            assert future.cancelled()
        finally:
            gate.set()


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)
