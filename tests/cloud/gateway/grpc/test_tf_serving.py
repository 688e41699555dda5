"""TensorFlow Serving's gRPC services, called with its public stubs."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from shared.messages.frame import pack_frame
from shared.task import task_named
from tests.support.gateway import WAIT_S, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

predict_pb2: Any = import_module("tensorflow_serving.apis.predict_pb2")
metadata_pb2: Any = import_module("tensorflow_serving.apis.get_model_metadata_pb2")
status_pb2: Any = import_module("tensorflow_serving.apis.get_model_status_pb2")
classify_pb2: Any = import_module("tensorflow_serving.apis.classification_pb2")
PredictionStub: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc").PredictionServiceStub
ModelStub: Any = import_module("tensorflow_serving.apis.model_service_pb2_grpc").ModelServiceStub


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(model(), model(name="dotted", version="1.2"), grpc="127.0.0.1:0") as worker:
        yield worker


@pytest.fixture(name="channel")
def _channel(worker: GatewayWorker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(worker.grpc) as channel:
        yield channel


def request_of(tensor: Any, *, name: str = "input", signature: str = "", **spec: Any) -> Any:
    """A PredictRequest, made with TensorFlow's functions."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = spec.pop("model", "tiny")
    request.model_spec.signature_name = signature
    if "version" in spec:
        request.model_spec.version.value = spec["version"]
    if "label" in spec:
        request.model_spec.version_label = spec["label"]
    request.inputs[name].CopyFrom(
        tensor if hasattr(tensor, "dtype") and hasattr(tensor, "int_val") else tensor_proto(tensor)
    )
    return request


def tensor_proto(values: Any) -> Any:
    """A TensorProto made by TensorFlow."""
    return tf.make_tensor_proto(values)


def noise(count: int) -> Any:
    """Random images, uint8 N×H×W×3."""
    return np.random.default_rng(3).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)


def test_an_unknown_encoding_is_an_error(channel: grpc.Channel) -> None:
    """After a typing error, the client would look for the numbers in an empty field."""
    with pytest.raises(grpc.RpcError, match="skylane-tensors is 'raw': send typed or content") as raised:
        PredictionStub(channel).Predict(request_of(noise(1)), WAIT_S, metadata=(("skylane-tensors", "raw"),))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_packed_results_are_returned_on_request(channel: grpc.Channel) -> None:
    """A mask is a PNG as for a vehicle, or has the codec in the metadata."""
    pixels = noise(1)[0]
    request = request_of([pixels.tobytes()], name="image_bytes", signature="packed")
    keys = (("skylane-codec", "raw"), ("skylane-mask-codec", "rle"))
    stub = PredictionStub(channel)
    for codec, metadata in (("png", keys[:1]), ("rle", keys)):
        packed = tf.make_ndarray(stub.Predict(request, WAIT_S, metadata=metadata).outputs["result_bytes"])
        mask = task_named("segmentation").decode(packed[0], codec, (HEIGHT, WIDTH))
        np.testing.assert_array_equal(mask, pixels[..., 0])


def test_a_vehicle_must_use_the_signature_packed(channel: grpc.Channel) -> None:
    """Its mask message describes a packed result, which the other signatures do not return."""
    request = request_of([bytes(frame(5).data)], name="image_bytes", signature="image")
    metadata = (("skylane-frame-bin", pack_frame(msgspec.structs.replace(frame(5), data=b""))),)
    with pytest.raises(grpc.RpcError, match="cannot be used with a frame message: use signature packed"):
        PredictionStub(channel).Predict(request, WAIT_S, metadata=metadata)


def test_a_version_is_selected_by_number_or_label(channel: grpc.Channel) -> None:
    """TensorFlow Serving's versions are whole numbers, but a Skylane version may be any name."""
    request = status_pb2.GetModelStatusRequest()
    request.model_spec.name = "dotted"
    (dotted,) = ModelStub(channel).GetModelStatus(request, WAIT_S).model_version_status
    assert (dotted.version > 1 << 32, dotted.state) == (True, status_pb2.ModelVersionStatus.AVAILABLE)
    for name, version in (("tiny", 1), ("dotted", dotted.version)):
        for chosen in ({}, {"version": version}, {"label": "1" if name == "tiny" else "1.2"}):
            response = PredictionStub(channel).Predict(request_of(noise(1), model=name, **chosen), WAIT_S)
            assert response.model_spec.version.value == version


def test_metadata_has_every_signature(channel: grpc.Channel) -> None:
    """Generic clients construct their calls from it."""
    request = metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "tiny"
    response = PredictionStub(channel).GetModelMetadata(request, WAIT_S)
    signatures = metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "image", "packed"}
    default = signatures.signature_def["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert [dim.size for dim in default.inputs["input"].tensor_shape.dim] == [-1, HEIGHT, WIDTH, 3]
    assert tf.DType(default.outputs["mask"].dtype) == tf.uint8
    assert tf.DType(signatures.signature_def["packed"].outputs["result_bytes"].dtype) == tf.string


def error_of(channel: grpc.Channel, request: Any, timeout_s: float = WAIT_S) -> tuple[str, str]:
    """The status code and the message with which a call fails."""
    with pytest.raises(grpc.RpcError) as raised:
        PredictionStub(channel).Predict(request, timeout_s)
    error: Any = raised.value
    return error.code().name, error.details()


SHORT = tensor_proto(np.zeros((1, HEIGHT, WIDTH, 3), np.uint8))
SHORT.tensor_content = b"123"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"model": "other"}, "NOT_FOUND", "other is not served"),
        ({"version": 9}, "NOT_FOUND", "tiny version 9 is not served: request 1 (1)"),
        ({"label": "stable"}, "NOT_FOUND", "tiny version stable is not served"),
        ({"signature": "none"}, "INVALID_ARGUMENT", "choose one of serving_default, image, packed"),
        ({"name": "x"}, "INVALID_ARGUMENT", "inputs x: signature serving_default accepts input only"),
        ({"tensor": np.zeros((1, 4, 6, 3), np.float32)}, "INVALID_ARGUMENT", "input is float32: send uint8"),
        ({"tensor": SHORT}, "INVALID_ARGUMENT", "of shape [1, 4, 6, 3] takes 72 bytes, not 3"),
        ({"tensor": [b"x"]}, "INVALID_ARGUMENT", "input is strings: send uint8, [n, 4, 6, 3]"),
        ({"tensor": b"x", "name": "image_bytes", "signature": "image"}, "INVALID_ARGUMENT", "strings of shape []"),
        ({"tensor": [b"x"], "name": "image_bytes", "signature": "image"}, "INVALID_ARGUMENT", "JPEG"),
    ],
)  # fmt: skip
def test_an_invalid_call_has_a_code_and_a_message(
    channel: grpc.Channel, changes: dict[str, Any], code: str, message: str
) -> None:
    """The message says what was sent and what is expected."""
    given, text = error_of(channel, request_of(changes.pop("tensor", noise(1)), **changes))
    assert given == code
    assert message in text


def test_unsupported_methods_are_unimplemented(channel: grpc.Channel) -> None:
    """Their features do not apply to image models."""
    with pytest.raises(grpc.RpcError) as raised:
        PredictionStub(channel).Classify(classify_pb2.ClassificationRequest(), WAIT_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "call Predict" in str(raised.value.details())
