"""Inference streams of the Open Inference Protocol, with Triton's client."""

import queue
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Self

import grpc
import msgspec
import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.gateway.grpc.stream import MAX_PENDING
from cloud.gateway.limits import GatewayTimeouts
from shared.messages.frame import pack_frame
from shared.models.manifest import Placement
from tests.support.gateway import WAIT_S, Gate, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model
from tests.support.workshop import Workshop

triton: Any = import_module("tritonclient.grpc")
service: Any = import_module("tritonclient.grpc.service_pb2")
Stub: Any = import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub
TritonError: Any = import_module("tritonclient.utils").InferenceServerException

GRPC = "127.0.0.1:0"


class Stream:
    """A stream of Triton's client and its responses in order; a context manager."""

    def __init__(self, worker: GatewayWorker, **options: Any) -> None:
        self._client = triton.InferenceServerClient(worker.grpc)
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._received.put(error or result), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def send(self, images: Any, model: str = "tiny", **options: Any) -> None:
        """Sends a request for the masks of images, uint8 N×H×W×3."""
        self._client.async_stream_infer(model, [_input(images)], **options)

    def infer(self, images: Any, model: str) -> Any:
        """Makes a single call outside the stream."""
        return self._client.infer(model, [_input(images)])

    def next(self) -> Any:
        """The next response or error."""
        return self._received.get(timeout=WAIT_S)

    def next_error(self) -> str:
        """The text of the next response, which must be an error."""
        error = self.next()
        assert isinstance(error, TritonError)
        return str(error)

    def stop(self) -> list[Any]:
        """Ends the stream, waits for the pending responses and returns all that were received."""
        self._client.stop_stream()
        return [self._received.get_nowait() for _ in range(self._received.qsize())]


def _input(images: Any) -> Any:
    tensor = triton.InferInput("input", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    return tensor


def one_colour(value: int, count: int = 1) -> Any:
    """Images of which every number is `value`."""
    return np.full((count, HEIGHT, WIDTH, 3), value, np.uint8)


@pytest.fixture(name="gate")
def _gate() -> Gate:
    gate = Gate()
    gate.close()
    return gate


@pytest.fixture(name="blocked_worker")
def _blocked_worker(gate: Gate) -> Iterator[GatewayWorker]:
    """A worker whose model `tiny` is blocked by the gate, while its model `free` is not."""
    with open_gateway(model(gate), model(name="free"), grpc="127.0.0.1:0") as worker:
        yield worker
        gate.open()


def test_requests_beyond_the_limit_wait_and_are_answered(worker: GatewayWorker) -> None:
    """A client need not limit its requests: further ones wait in the network."""
    count = 5 * MAX_PENDING
    with Stream(worker) as stream:
        for number in range(count):
            stream.send(one_colour(number, 1 + number % 3), request_id=str(number))
        responses = stream.stop()
    assert {int(each.get_response().id) for each in responses} == set(range(count))
    for each in responses:
        number = int(each.get_response().id)
        np.testing.assert_array_equal(each.as_numpy("mask"), one_colour(number, 1 + number % 3)[..., 0])


def test_a_response_has_its_stage_durations_and_is_marked_as_final(worker: GatewayWorker) -> None:
    """Responses of a stream have no trailing metadata; clients look for the last response to a request."""
    with Stream(worker) as stream:
        stream.send(one_colour(1))
        parameters = stream.next().get_response().parameters
    assert parameters["triton_final_response"].bool_param
    assert "inferred;dur=" in parameters["server_timing"].string_param


def test_responses_are_sent_as_they_finish(blocked_worker: GatewayWorker, gate: Gate) -> None:
    """A slow model must not delay the responses of another one."""
    with Stream(blocked_worker) as stream:
        stream.send(one_colour(1), "tiny")
        assert gate.reached.wait(WAIT_S)
        stream.send(one_colour(2), "free")
        assert stream.next().get_response().model_name == "free"
        gate.open()
        assert stream.next().get_response().model_name == "tiny"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "none"}, "NOT_FOUND: none is not served here"),
        ({"images": one_colour(1)[:, 1:]}, "INVALID_ARGUMENT: input has shape"),
        ({"images": one_colour(1, 65)}, "INVALID_ARGUMENT: 65 images in one call"),
        ({"timeout": 1}, "DEADLINE_EXCEEDED: "),
        ({"parameters": {"codec": 7}}, "INVALID_ARGUMENT: parameter codec"),
    ],
)
def test_a_request_that_fails_does_not_end_its_stream(
    worker: GatewayWorker, options: dict[str, Any], message: str
) -> None:
    """One bad image must not affect the other requests of the stream."""
    with Stream(worker) as stream:
        stream.send(**{"images": one_colour(1), **options})
        assert message in stream.next_error()
        stream.send(one_colour(2))
        assert stream.next().as_numpy("mask").max() == 2


def test_an_error_has_the_id_of_its_request(worker: GatewayWorker) -> None:
    """Responses arrive in any order. A malformed request has no id."""
    requests = [
        service.ModelInferRequest(model_name="none", id="first"),
        service.ModelInferRequest(model_name="tiny", id="second", raw_input_contents=[b"x"]),
    ]
    with grpc.insecure_channel(worker.grpc) as channel:
        responses = list(Stub(channel).ModelStreamInfer(iter(requests), timeout=WAIT_S))
        converse: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        (broken,) = converse(iter([b"\x0a\xff"]), timeout=WAIT_S)
    assert [each.infer_response.id for each in responses] == ["first", "second"]
    assert all(each.error_message for each in responses)
    assert b"INVALID_ARGUMENT: not an inference.ModelInferRequest" in broken


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_response_that_is_too_large_fails_alone(workshop: Workshop, is_streamed: bool) -> None:  # noqa: FBT001
    """grpcio would end the stream at a larger one; five scores per pixel are larger than the image itself."""
    workshop.add(
        "net",
        workshop.graph(lambda scores: tf.cast(scores, tf.float32)),
        task="tensors",
        outputs={"of": {"tensor": "prediction:0", "kind": "tensor"}},
        output=None,
        labels=[],
    )
    images = np.zeros((8, 8, 12, 3), np.uint8)
    with (
        workshop.open("net", Placement(device="cpu")) as net,
        open_gateway(net, grpc=GRPC, max_message_bytes=12 << 10) as worker,
        Stream(worker) as stream,
    ):
        if is_streamed:
            stream.send(images, "net")
            assert "INVALID_ARGUMENT: outputs of more than 12288 bytes: request fewer" in stream.next_error()
            stream.send(images[:1], "net")
            assert stream.next().as_numpy("of").shape == (1, 8, 12, 5)
        else:
            with pytest.raises(TritonError, match="outputs of more than 12288 bytes: request fewer"):
                stream.infer(images, "net")


def test_the_deadline_of_a_stream_applies_to_its_requests(blocked_worker: GatewayWorker) -> None:
    """The stream ends with the error of the deadline."""
    with Stream(blocked_worker, stream_timeout=0.5) as stream:
        stream.send(one_colour(1))
        assert "DEADLINE_EXCEEDED" in stream.next_error()


def test_an_idle_stream_is_closed() -> None:
    """It holds memory and a thread; a message that arrives byte by byte looks the same."""
    with (
        open_gateway(model(), grpc=GRPC, timeouts=GatewayTimeouts(stream_idle_s=0.3)) as worker,
        Stream(worker) as stream,
    ):
        assert "no request for 0.3 s" in stream.next_error()


def test_a_stopping_worker_ends_its_streams() -> None:
    """It must not wait for idle clients, and clients must know that no more responses will arrive."""
    with open_gateway(model(), grpc="127.0.0.1:0") as worker, Stream(worker) as stream:
        stream.send(one_colour(1))
        stream.next()
        worker.node.stop()
        assert "the worker is stopping" in stream.next_error()


def test_a_stream_rejects_a_frame_message_in_its_metadata(worker: GatewayWorker) -> None:
    """It describes a single frame, but the metadata would apply to every request of the stream."""
    headers = {"skylane-frame-bin": pack_frame(msgspec.structs.replace(frame(1), data=b""))}
    with Stream(worker, headers=headers) as stream:
        assert "send it with ModelInfer" in stream.next_error()
