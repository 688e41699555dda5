"""Streams of inferences by the Open Inference Protocol, from Triton's own client."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import grpc
import msgspec
import numpy as np
import pytest

from cloud.engines.engine import Placement
from cloud.engines.tensorflow.library import tf
from cloud.gateway.grpc.stream import MAX_PENDING
from cloud.gateway.settings import GatewaySettings
from shared.messages.frame import pack_frame
from tests.cloud.conftest import Workshop
from tests.support.gateway import WAIT_S, Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

triton: Any = import_module("tritonclient.grpc")
service: Any = import_module("tritonclient.grpc.service_pb2")
Stub: Any = import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub
TritonError: Any = import_module("tritonclient.utils").InferenceServerException

GRPC_ALONE = GatewaySettings(grpc="127.0.0.1:0")


class Stream:
    """A stream of Triton's client, and what came back on it, in order; use it in a `with`."""

    def __init__(self, doors: Doors, **options: Any) -> None:
        self._client = triton.InferenceServerClient(doors.grpc)
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._came.put(error or result), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def send(self, pictures: Any, model: str = "tiny", **options: Any) -> None:
        """Ask for the masks of pictures, uint8 N×H×W×3."""
        self._client.async_stream_infer(model, [_input(pictures)], **options)

    def infer(self, pictures: Any, model: str) -> Any:
        """Ask beside the stream."""
        return self._client.infer(model, [_input(pictures)])

    def next(self) -> Any:
        """The next answer or error."""
        return self._came.get(timeout=WAIT_S)

    def refusal(self) -> str:
        """The text of the next one, which is an error."""
        error = self.next()
        assert isinstance(error, TritonError)
        return str(error)

    def stop(self) -> list[Any]:
        """Say that nothing more will come, wait for what was asked, and tell what came."""
        self._client.stop_stream()
        return [self._came.get_nowait() for _ in range(self._came.qsize())]


def _input(pictures: Any) -> Any:
    tensor = triton.InferInput("input", list(pictures.shape), "UINT8")
    tensor.set_data_from_numpy(pictures)
    return tensor


def one_colour(value: int, count: int = 1) -> Any:
    """Pictures of which every number is `value`."""
    return np.full((count, HEIGHT, WIDTH, 3), value, np.uint8)


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), gateway=GRPC_ALONE) as doors:
        yield doors


@pytest.fixture(name="held")
def _held() -> Iterator[tuple[Doors, Callable[[], None], threading.Event]]:
    """A worker whose model waits until it is told to go on; entered: it has begun."""
    entered, go_on = threading.Event(), threading.Event()

    def act() -> None:
        entered.set()
        go_on.wait(WAIT_S)

    with open_gateway(model(act), model(name="free"), gateway=GRPC_ALONE) as doors:
        yield doors, go_on.set, entered
        go_on.set()


def test_a_stream_gets_what_the_direct_call_gives(workshop: Workshop) -> None:
    """The client's own three calls work unchanged on a real model, bit by bit."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    pictures = np.random.default_rng(5).integers(0, 256, (4, 8, 12, 3), np.uint8)
    with workshop.repository.load("net", Placement(device="cpu")) as net:
        direct = net.predict(pictures)
        with open_gateway(net, gateway=GRPC_ALONE) as doors, Stream(doors) as stream:
            for number in range(len(pictures)):
                stream.send(pictures[number : number + 1], "net", request_id=str(number))
            answers = {each.get_response().id: each.as_numpy("mask") for each in stream.stop()}
    assert answers.keys() == {"0", "1", "2", "3"}
    for number, mask in enumerate(direct):
        np.testing.assert_array_equal(answers[str(number)][0], mask)


def test_more_than_are_taken_at_a_time_are_all_answered(doors: Doors) -> None:
    """A client need not count: what comes beyond waits in the network."""
    count = 5 * MAX_PENDING
    with Stream(doors) as stream:
        for number in range(count):
            stream.send(one_colour(number, 1 + number % 3), request_id=str(number))
        answers = stream.stop()
    assert {int(each.get_response().id) for each in answers} == set(range(count))
    for each in answers:
        number = int(each.get_response().id)
        np.testing.assert_array_equal(each.as_numpy("mask"), one_colour(number, 1 + number % 3)[..., 0])


def test_the_client_of_asyncio_is_answered_too(doors: Doors) -> None:
    """It is another implementation, which sends from an iterator and does not wait for the end of a call."""
    aio: Any = import_module("tritonclient.grpc.aio")

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"model_name": "tiny", "inputs": [_input(one_colour(number))], "request_id": str(number)}

    async def answers() -> dict[str, int]:
        async with aio.InferenceServerClient(doors.grpc) as client:
            came = [each async for each in client.stream_infer(requests())]
        assert [error for _, error in came] == [None] * 3
        return {result.get_response().id: result.as_numpy("mask").max() for result, _ in came}

    assert asyncio.run(answers()) == {"0": 0, "1": 1, "2": 2}


def test_an_answer_tells_its_times_and_that_it_is_the_only_one(doors: Doors) -> None:
    """No metadata stands behind it as behind a call's; clients of streams look for the end of a request."""
    with Stream(doors) as stream:
        stream.send(one_colour(1))
        told = stream.next().get_response().parameters
    assert told["triton_final_response"].bool_param
    assert "inferred;dur=" in told["server_timing"].string_param


def test_what_is_done_first_comes_first(held: tuple[Doors, Callable[[], None], threading.Event]) -> None:
    """A slow model must not hold the answers of another back."""
    doors, go_on, entered = held
    with Stream(doors) as stream:
        stream.send(one_colour(1), "tiny")
        assert entered.wait(WAIT_S)
        stream.send(one_colour(2), "free")
        assert stream.next().get_response().model_name == "free"
        go_on()
        assert stream.next().get_response().model_name == "tiny"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"model": "none"}, "NOT_FOUND: none is not served here"),
        ({"pictures": one_colour(1)[:, 1:]}, "INVALID_ARGUMENT: input has shape"),
        ({"pictures": one_colour(1, 65)}, "INVALID_ARGUMENT: 65 pictures in one call"),
        ({"timeout": 1}, "DEADLINE_EXCEEDED: "),
        ({"parameters": {"codec": 7}}, "INVALID_ARGUMENT: parameter codec"),
    ],
)
def test_a_request_that_is_refused_does_not_end_its_stream(doors: Doors, sent: dict[str, Any], told: str) -> None:
    """One bad picture must not cost the others of a drive."""
    with Stream(doors) as stream:
        stream.send(**{"pictures": one_colour(1), **sent})
        assert told in stream.refusal()
        stream.send(one_colour(2))
        assert stream.next().as_numpy("mask").max() == 2


def test_a_refusal_tells_which_request_it_is_of(doors: Doors) -> None:
    """Answers come in any order; what could not even be read has an id where that could be."""
    requests = [
        service.ModelInferRequest(model_name="none", id="first"),
        service.ModelInferRequest(model_name="tiny", id="second", raw_input_contents=[b"x"]),
    ]
    with grpc.insecure_channel(doors.grpc) as channel:
        told = list(Stub(channel).ModelStreamInfer(iter(requests), timeout=WAIT_S))
        converse: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        (broken,) = converse(iter([b"\x0a\xff"]), timeout=WAIT_S)
    assert [each.infer_response.id for each in told] == ["first", "second"]
    assert all(each.error_message for each in told)
    assert b"INVALID_ARGUMENT: not an inference.ModelInferRequest" in broken


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_answer_that_is_too_large_is_refused_alone(workshop: Workshop, is_streamed: bool) -> None:  # noqa: FBT001
    """Sent all the same, the library would end the stream; five scores of each pixel are more than the picture was."""
    workshop.add(
        "net",
        workshop.graph(lambda scores: tf.cast(scores, tf.float32)),
        task="tensors",
        outputs={"of": {"tensor": "prediction:0", "kind": "tensor"}},
        output=None,
        labels=[],
    )
    settings = replace(GRPC_ALONE, max_message_bytes=12 << 10)
    pictures = np.zeros((8, 8, 12, 3), np.uint8)
    with (
        workshop.repository.load("net", Placement(device="cpu")) as net,
        open_gateway(net, gateway=settings) as doors,
        Stream(doors) as stream,
    ):
        if is_streamed:
            stream.send(pictures, "net")
            assert "INVALID_ARGUMENT: an answer of 15" in stream.refusal()
            stream.send(pictures[:1], "net")
            assert stream.next().as_numpy("of").shape == (1, 8, 12, 5)
        else:
            with pytest.raises(TritonError, match=r"an answer of 15... bytes: at most 12288 are sent"):
                stream.infer(pictures, "net")


def test_a_streams_deadline_is_that_of_its_requests(
    held: tuple[Doors, Callable[[], None], threading.Event],
) -> None:
    """Who waits no longer is told so by the stream's own end."""
    doors, _, _ = held
    with Stream(doors, stream_timeout=0.5) as stream:
        stream.send(one_colour(1))
        assert "DEADLINE_EXCEEDED" in stream.refusal()


def test_a_stream_on_which_nothing_is_said_ends() -> None:
    """A message that comes byte by byte looks the same, and holds memory and a thread."""
    with open_gateway(model(), gateway=replace(GRPC_ALONE, silent_s=0.3)) as doors, Stream(doors) as stream:
        assert "nothing came for 0.3 s" in stream.refusal()


def test_a_worker_that_stops_ends_streams() -> None:
    """Its end must not wait for a client that only listens; a client must know that nothing more will come."""
    with open_gateway(model(), gateway=GRPC_ALONE) as doors, Stream(doors) as stream:
        stream.send(one_colour(1))
        stream.next()
        doors.node.stop()
        assert "the worker is stopping" in stream.refusal()


def test_a_stream_is_opened_with_a_token(tmp_path: Path) -> None:
    """As every other call."""
    (tmp_path / "tokens").write_text("car 0123456789abcdef\n")
    settings = replace(GRPC_ALONE, tokens=tmp_path / "tokens")
    with open_gateway(model(), gateway=settings) as doors:
        with Stream(doors) as stream:
            assert "UNAUTHENTICATED" in stream.refusal()
        with Stream(doors, headers={"authorization": "Bearer 0123456789abcdef"}) as stream:
            stream.send(one_colour(3))
            assert stream.next().as_numpy("mask").max() == 3


def test_a_vehicles_frame_message_belongs_to_one_call(doors: Doors) -> None:
    """It tells of one frame: taken for a stream, every request would be that frame."""
    told = {"skylane-frame-bin": pack_frame(msgspec.structs.replace(frame(1), data=b""))}
    with Stream(doors, headers=told) as stream:
        assert "send it with ModelInfer" in stream.refusal()
