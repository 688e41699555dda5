"""TensorFlow Serving's gRPC services, asked by its own public stubs."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any

import cv2
import grpc
import msgspec
import numpy as np
import pytest

from cloud.engines.engine import Placement
from cloud.engines.tensorflow.library import tf
from cloud.gateway.settings import GatewaySettings
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.messages import results
from shared.messages.frame import RequestOptions, Status, pack_frame, unpack_result
from shared.messages.model_card import Task
from tests.cloud.conftest import Workshop
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

predict: Any = import_module("tensorflow_serving.apis.predict_pb2")
metadata: Any = import_module("tensorflow_serving.apis.get_model_metadata_pb2")
status: Any = import_module("tensorflow_serving.apis.get_model_status_pb2")
classify: Any = import_module("tensorflow_serving.apis.classification_pb2")
PredictionStub: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc").PredictionServiceStub
ModelStub: Any = import_module("tensorflow_serving.apis.model_service_pb2_grpc").ModelServiceStub

WAIT_S = 60.0
GRPC_ALONE = GatewaySettings(grpc="127.0.0.1:0")


@pytest.fixture(name="doors")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), model(name="dotted", version="1.2"), gateway=GRPC_ALONE) as doors:
        yield doors


@pytest.fixture(name="channel")
def _channel(doors: Doors) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(doors.grpc) as channel:
        yield channel


def asked(tensor: Any, *, name: str = "input", signature: str = "", **spec: Any) -> Any:
    """A PredictRequest as TensorFlow's own tools make it."""
    request = predict.PredictRequest()
    request.model_spec.name = spec.pop("model", "tiny")
    request.model_spec.signature_name = signature
    if "version" in spec:
        request.model_spec.version.value = spec["version"]
    if "label" in spec:
        request.model_spec.version_label = spec["label"]
    request.inputs[name].CopyFrom(tensor if hasattr(tensor, "dtype") and hasattr(tensor, "int_val") else made(tensor))
    return request


def made(values: Any) -> Any:
    """A TensorProto by TensorFlow."""
    return tf.make_tensor_proto(values)


def noise(count: int, height: int = HEIGHT, width: int = WIDTH) -> Any:
    """uint8 N×H×W×3."""
    return np.random.default_rng(3).integers(0, 256, (count, height, width, 3), np.uint8)


def jpeg(picture: Any) -> bytes:
    """An RGB picture as a JPEG."""
    return bytes(cv2.imencode(".jpg", picture[..., ::-1])[1])


def test_an_ordinary_call_gets_what_the_direct_call_gives(workshop: Workshop) -> None:
    """The three lines that everybody's client has work unchanged, on a real model, bit by bit, in one process."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    pictures = np.random.default_rng(1).integers(0, 256, (3, 8, 12, 3), np.uint8)
    with workshop.repository.load("net", Placement(device="cpu")) as net:
        direct = net.predict(pictures)
        with open_gateway(net, gateway=GRPC_ALONE) as doors, grpc.insecure_channel(doors.grpc) as channel:
            request = asked(pictures, model="net", signature="serving_default")
            answer = PredictionStub(channel).Predict(request, WAIT_S)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["mask"]), direct)
    assert list(answer.outputs) == ["mask"]
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("net", 1)


@pytest.mark.parametrize("values", [(7, 100), (128, 255)])
def test_numbers_may_come_in_the_list_of_their_type(channel: grpc.Channel, values: tuple[int, int]) -> None:
    """Clients without TensorFlow fill `int_val`; half of the pixels take two bytes there."""
    pixels = np.random.default_rng(2).choice(values, (2, HEIGHT, WIDTH, 3)).astype(np.uint8)
    tensor = made(pixels)
    tensor.ClearField("tensor_content")
    tensor.int_val.extend(pixels.ravel().tolist())
    answer = PredictionStub(channel).Predict(asked(tensor), WAIT_S)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["mask"]), pixels[..., 0])


@pytest.mark.parametrize("count", [1, 190])
def test_numbers_lie_where_clients_look_for_them(count: int) -> None:
    """TensorFlow Serving answers in the lists, of any size, and many a client reads `float_val` or `int_val` itself."""
    pixels = noise(count)
    with (
        open_gateway(model(), gateway=GRPC_ALONE, max_frames=200) as doors,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        for form in ((), (("skylane-tensors", "typed"),)):
            mask = PredictionStub(channel).Predict(asked(pixels), WAIT_S, metadata=form).outputs["mask"]
            assert list(mask.int_val) == pixels[..., 0].ravel().tolist()
            assert not mask.tensor_content
            np.testing.assert_array_equal(tf.make_ndarray(mask), pixels[..., 0])


def test_whoever_asks_for_bytes_gets_bytes(channel: grpc.Channel) -> None:
    """A list of numbers takes a client thirty milliseconds where the bytes take one."""
    pixels = noise(2)
    told = (("skylane-tensors", "content"),)
    mask = PredictionStub(channel).Predict(asked(pixels), WAIT_S, metadata=told).outputs["mask"]
    assert (mask.tensor_content, list(mask.int_val)) == (pixels[..., 0].tobytes(), [])
    np.testing.assert_array_equal(tf.make_ndarray(mask), pixels[..., 0])


def test_a_form_that_there_is_not_is_refused(channel: grpc.Channel) -> None:
    """Whoever misspells it would look for numbers where there are none."""
    with pytest.raises(grpc.RpcError, match="skylane-tensors is 'raw': send typed or content") as raised:
        PredictionStub(channel).Predict(asked(noise(1)), WAIT_S, metadata=(("skylane-tensors", "raw"),))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_encoded_pictures_are_resized_as_the_card_says(channel: grpc.Channel) -> None:
    """A client need not know the model's size."""
    pixels = noise(1, 2 * HEIGHT, 3 * WIDTH)[0]
    data = jpeg(pixels)
    answer = PredictionStub(channel).Predict(asked([data], name="image_bytes", signature="image"), WAIT_S)
    decoded = image_codecs.decode(data, "jpeg", Layout.RGB8, pixels.shape, image_codecs.ImageLimits(), Layout.RGB8)
    plan = geometry.plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
    expected = geometry.apply(decoded, plan)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["mask"])[0], expected[..., 0])


def test_finished_results_come_packed(channel: grpc.Channel) -> None:
    """What a vehicle gets, for whoever wants it: a mask as PNG, or in the codec that the call names."""
    pixels = noise(1)[0]
    request = asked([pixels.tobytes()], name="image_bytes", signature="packed")
    keys = (("skylane-codec", "raw"), ("skylane-mask-codec", "rle"))
    stub = PredictionStub(channel)
    for codec, told in (("png", keys[:1]), ("rle", keys)):
        packed = tf.make_ndarray(stub.Predict(request, WAIT_S, metadata=told).outputs["result_bytes"])
        mask = results.decode(Task.SEGMENTATION, packed[0], codec, (HEIGHT, WIDTH))
        np.testing.assert_array_equal(mask, pixels[..., 0])


def test_a_vehicles_call_carries_its_frame_and_gets_its_mask_message(channel: grpc.Channel) -> None:
    """The same ids, stamps and outcomes as over the broker, at a standard door."""
    message = frame(5)
    request = asked([message.data], name="image_bytes", signature="packed")
    told = (("skylane-frame-bin", pack_frame(msgspec.structs.replace(message, data=b""))),)
    answer, call = PredictionStub(channel).Predict.with_call(request, WAIT_S, metadata=told)
    behind = dict(call.trailing_metadata())
    answered = unpack_result(behind["skylane-mask-bin"])
    assert (answered.id, answered.status, answered.data) == (message.id, Status.ANSWERED, b"")
    data = bytes(answer.outputs["result_bytes"].string_val[0])
    np.testing.assert_array_equal(results.decode(Task.SEGMENTATION, data, "raw", (HEIGHT, WIDTH)), np.full((4, 6), 5))
    assert "inferred;dur=" in behind["server-timing"]


def test_a_vehicle_is_told_what_became_of_its_frame(channel: grpc.Channel) -> None:
    """A refused frame is an outcome of the run, not a broken call."""
    message = msgspec.structs.replace(frame(5), codec="jpeg", want=RequestOptions("raw"))
    request = asked([b"no picture"], name="image_bytes")
    told = (("skylane-frame-bin", pack_frame(msgspec.structs.replace(message, data=b""))),)
    answer, call = PredictionStub(channel).Predict.with_call(request, WAIT_S, metadata=told)
    assert not answer.outputs
    assert unpack_result(dict(call.trailing_metadata())["skylane-mask-bin"]).status is Status.REJECTED


def test_a_vehicles_call_is_one_of_finished_results(channel: grpc.Channel) -> None:
    """Its mask message tells of a result, which the other signatures do not give."""
    request = asked([bytes(frame(5).data)], name="image_bytes", signature="image")
    told = (("skylane-frame-bin", pack_frame(msgspec.structs.replace(frame(5), data=b""))),)
    with pytest.raises(grpc.RpcError, match="answered by packed alone"):
        PredictionStub(channel).Predict(request, WAIT_S, metadata=told)


def test_versions_are_asked_for_by_number_or_label(channel: grpc.Channel) -> None:
    """Ours may have dots; TensorFlow Serving's are whole numbers."""
    (dotted,) = ModelStub(channel).GetModelStatus(_status("dotted"), WAIT_S).model_version_status
    assert dotted.version > 1 << 32
    for name, version in (("tiny", 1), ("dotted", dotted.version)):
        for chosen in ({}, {"version": version}, {"label": "1" if name == "tiny" else "1.2"}):
            answer = PredictionStub(channel).Predict(asked(noise(1), model=name, **chosen), WAIT_S)
            assert answer.model_spec.version.value == version


def test_status_tells_what_is_available(channel: grpc.Channel) -> None:
    """A client waits for this before its first call."""
    request = _status("tiny")
    request.model_spec.version.value = 1
    (told,) = ModelStub(channel).GetModelStatus(request, WAIT_S).model_version_status
    assert (told.version, told.state, told.status.error_code) == (1, status.ModelVersionStatus.AVAILABLE, 0)


def test_metadata_tells_every_signature(channel: grpc.Channel) -> None:
    """Generic clients build their calls from it."""
    request = metadata.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "tiny"
    answer = PredictionStub(channel).GetModelMetadata(request, WAIT_S)
    signatures = metadata.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "image", "packed"}
    default = signatures.signature_def["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert [side.size for side in default.inputs["input"].tensor_shape.dim] == [-1, HEIGHT, WIDTH, 3]
    assert tf.DType(default.outputs["mask"].dtype) == tf.uint8
    assert tf.DType(signatures.signature_def["packed"].outputs["result_bytes"].dtype) == tf.string


def _status(name: str) -> Any:
    request = status.GetModelStatusRequest()
    request.model_spec.name = name
    return request


def test_only_the_outputs_asked_for_come(channel: grpc.Channel) -> None:
    """Scores of every pixel are megabytes that a caller may not want; a wrong name is told with the right ones."""
    request = asked(noise(1))
    request.output_filter.append("mask")
    assert list(PredictionStub(channel).Predict(request, WAIT_S).outputs) == ["mask"]
    request.output_filter[:] = ["scores"]
    assert refusal(channel, request) == (
        "INVALID_ARGUMENT",
        "no output scores: ask for mask, or for result_bytes alone",
    )


def refusal(channel: grpc.Channel, request: Any, timeout_s: float = WAIT_S) -> tuple[str, str]:
    """The code and the text that a call is refused with."""
    with pytest.raises(grpc.RpcError) as raised:
        PredictionStub(channel).Predict(request, timeout_s)
    error: Any = raised.value
    return error.code().name, error.details()


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"model": "other"}, "NOT_FOUND", "other is not served here: ask for dotted version 1.2, tiny"),
        ({"version": 9}, "NOT_FOUND", "tiny version 9 is not served here: ask for"),
        ({"label": "stable"}, "NOT_FOUND", "tiny version stable is not served here"),
        ({"signature": "none"}, "INVALID_ARGUMENT", "choose one of serving_default, image, packed"),
        ({"name": "x"}, "INVALID_ARGUMENT", "inputs x: signature serving_default takes input alone"),
        ({"tensor": np.zeros((1, 4, 6, 3), np.float32)}, "INVALID_ARGUMENT", "input is float32: send uint8"),
        ({"tensor": np.zeros((1, 4, 5, 3), np.uint8)}, "INVALID_ARGUMENT", "shape [1, 4, 5, 3]: send [n, 4, 6, 3]"),
        ({"tensor": np.zeros((65, 4, 6, 3), np.uint8)}, "INVALID_ARGUMENT", "65 pictures in one call: at most 64"),
        ({"tensor": np.zeros((0, 4, 6, 3), np.uint8)}, "INVALID_ARGUMENT", "no picture"),
        ({"tensor": [b"x"]}, "INVALID_ARGUMENT", "input is strings: send uint8, [n, 4, 6, 3]"),
        ({"tensor": b"x", "name": "image_bytes", "signature": "image"}, "INVALID_ARGUMENT", "its shape is []"),
        ({"tensor": [b"x"], "name": "image_bytes", "signature": "image"}, "INVALID_ARGUMENT", "JPEG"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_its_code(
    channel: grpc.Channel, changes: dict[str, Any], code: str, told: str
) -> None:
    """A caller learns what was given and what is expected."""
    given, text = refusal(channel, asked(changes.pop("tensor", noise(1)), **changes))
    assert given == code
    assert told in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tensor_content": b"123"}, "of shape [1, 4, 6, 3] takes 72 bytes, not 3"),
        ({"tensor_content": b"", "int_val": [1]}, "holds 1 numbers, its shape [1, 4, 6, 3] takes 72"),
        ({"tensor_content": b"", "int_val": [256] * 72}, "none of uint8"),
        ({"tensor_content": b"", "int_val": [-1] * 72}, "none of uint8"),
        ({"tensor_shape": {"unknown_rank": True}}, "tell every side"),
        ({"tensor_shape": {"dim": [{"size": -1}]}}, "tell every side"),
        ({"tensor_shape": {"dim": [{"size": 1 << 40}] * 8}}, "takes more than 268435456 bytes"),
        ({"tensor_shape": {"dim": [{"size": 1}] * 9}}, "send at most 8"),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_refused(
    channel: grpc.Channel, changes: dict[str, Any], told: str
) -> None:
    """No memory is taken for a shape that is a lie."""
    tensor: Any = made(noise(1))
    for field in changes:
        tensor.ClearField(field)
    tensor.MergeFrom(type(tensor)(**changes))
    assert told in refusal(channel, asked(tensor))[1]


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x12\x05abc", b"\x12\x04\x0a\x02\xff\xff", b"\x0a\x02\x0a\x09", b""])
def test_bytes_that_are_no_request_are_an_invalid_argument(channel: grpc.Channel, data: bytes) -> None:
    """A broken client learns so, and costs nobody anything."""
    answer: Any = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    with pytest.raises(grpc.RpcError) as raised:
        answer(data, timeout=WAIT_S)
    assert raised.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_methods_that_are_not_spoken_say_so(channel: grpc.Channel) -> None:
    """They take features that no picture model has."""
    with pytest.raises(grpc.RpcError) as raised:
        PredictionStub(channel).Classify(classify.ClassificationRequest(), WAIT_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "call Predict" in str(raised.value.details())


def test_compressed_calls_are_read(doors: Doors) -> None:
    """A client on a narrow link asks for gzip."""
    pixels = noise(2)
    with grpc.insecure_channel(doors.grpc, compression=grpc.Compression.Gzip) as channel:
        answer = PredictionStub(channel).Predict(asked(pixels), WAIT_S)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["mask"]), pixels[..., 0])


def test_a_deadline_ends_the_call() -> None:
    """Who waits no longer is told so, and costs no inference."""
    go_on = threading.Event()

    def act() -> None:
        go_on.wait(WAIT_S)

    with (
        open_gateway(model(act), gateway=GRPC_ALONE) as doors,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        assert refusal(channel, asked(noise(1)), 0.2)[0] == "DEADLINE_EXCEEDED"
        go_on.set()


def test_more_than_may_wait_is_turned_away() -> None:
    """A full worker says so at once, by the code that clients back off at."""
    entered, go_on = threading.Event(), threading.Event()

    def act() -> None:
        entered.set()
        go_on.wait(WAIT_S)

    with (
        open_gateway(model(act), gateway=GRPC_ALONE, max_frames=1) as doors,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        stub = PredictionStub(channel)
        calls = [stub.Predict.future(asked(noise(1)), WAIT_S) for _ in range(12)]
        assert entered.wait(WAIT_S)
        first = next(call for call in concurrent_done(calls) if call.code() is not grpc.StatusCode.OK)
        assert first.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "waiting" in first.details()
        go_on.set()
        assert {call.code().name for call in calls} == {"OK", "RESOURCE_EXHAUSTED"}


def concurrent_done(calls: list[Any]) -> Iterator[Any]:
    """Calls as they end."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for call in calls:
        call.add_done_callback(ended.put)
    while True:
        yield ended.get(timeout=WAIT_S)


def test_a_worker_that_stops_is_unavailable(doors: Doors) -> None:
    """Clients try another one at that."""
    with grpc.insecure_channel(doors.grpc) as channel:
        PredictionStub(channel).Predict(asked(noise(1)), WAIT_S)
        doors.node.stop()
        with pytest.raises(grpc.RpcError) as raised:
            list(map(PredictionStub(channel).Predict, repeat(asked(noise(1)))))
    assert raised.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_a_token_is_asked_for_before_anything_is_read(tmp_path: Path) -> None:
    """A stranger's tensors are not even looked at."""
    tokens = tmp_path / "tokens"
    tokens.write_text("car 0123456789abcdef\n")
    with (
        open_gateway(model(), gateway=replace(GRPC_ALONE, tokens=tokens)) as doors,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        assert refusal(channel, predict.PredictRequest())[0] == "UNAUTHENTICATED"
        told = (("authorization", "Bearer 0123456789abcdef"),)
        assert PredictionStub(channel).Predict(asked(noise(1)), WAIT_S, metadata=told).outputs
