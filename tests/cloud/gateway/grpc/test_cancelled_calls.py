"""gRPC callers that cancel their calls, for each service."""

import threading
from typing import Any

import grpc
import numpy as np
import pytest

from shared.messages.frame import pack_frame
from shared.messages.protobuf import message_class
from shared.messages.protobuf_fields import pack
from shared.messages.tensorflow_tensors import to_tensor_proto
from tests.support.gateway import WAIT_S, Gate, open_gateway, watch_submissions
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

_SHAPE = (1, HEIGHT, WIDTH, 3)
_PREDICT = message_class("tensorflow.serving.PredictRequest")(model_spec={"name": "tiny"})
_PREDICT.inputs["input"].CopyFrom(to_tensor_proto(np.zeros(_SHAPE, np.uint8)))
_INFER = message_class("inference.ModelInferRequest")(
    model_name="tiny",
    inputs=[{"name": "input", "datatype": "UINT8", "shape": _SHAPE}],
    raw_input_contents=[bytes(HEIGHT * WIDTH * 3)],
)


@pytest.mark.parametrize(
    ("method", "request_bytes"),
    [
        ("tensorflow.serving.PredictionService/Predict", _PREDICT.SerializeToString()),
        ("inference.GRPCInferenceService/ModelInfer", _INFER.SerializeToString()),
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
        open_gateway(model(gate), grpc="127.0.0.1:0") as worker,
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


@pytest.mark.parametrize("ending", ["cancelled", "past its deadline", "too large"])
def test_a_call_that_ends_early_logs_no_traceback(
    ending: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller without a token could fill the worker's log: a hundred bytes made a traceback of three kilobytes."""
    gate = Gate()
    gate.close()
    submitted = watch_submissions(monkeypatch)
    with (
        open_gateway(model(gate), grpc="127.0.0.1:0", max_message_bytes=1 << 20) as worker,
        grpc.insecure_channel(worker.grpc) as channel,
    ):
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            if ending == "too large":
                pending = call.future(bytes(4 << 20), timeout=WAIT_S)
            else:
                pending = call.future(
                    _INFER.SerializeToString(), timeout=0.5 if ending == "past its deadline" else WAIT_S
                )
                submitted.get(timeout=WAIT_S)
                if ending == "cancelled":
                    pending.cancel()
            assert pending.cancelled() or pending.exception(timeout=WAIT_S) is not None
        finally:
            gate.open()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("grpc")] == []
