"""One request that raises an unexpected exception fails alone: the next one is answered."""

import logging
import queue
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any

import cv2
import grpc
import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud.models.model_swap import ModelSwap
from cloud.serving.request import UNHEALTHY_ERRORS, RequestErrors
from cloud.serving.submission import Submission
from shared.messages import topics
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.control import ControlRequest, ModelEntry, Verb, pack_request, unpack_reply
from shared.messages.frame import Status, pack_frame
from shared.messages.protobuf import message_class
from shared.messages.protobuf_fields import pack
from shared.messages.tensorflow_tensors import to_tensor_proto
from shared.mqtt.bus import Delivery
from tests.support.gateway import WAIT_S, GatewayWorker, Sender, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

PIXELS = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
INFERENCE = {"instances": PIXELS[None].tolist()}


class ArtificialError(Exception):
    """An exception that no interface names."""


def raise_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, except that its first call raises."""
    calls = iter((True,))

    def called(*args: Any, **kwargs: Any) -> Any:
        if next(calls, False):
            raise ArtificialError("artificial")
        return function(*args, **kwargs)

    return called


@pytest.fixture(name="doors")
def _doors() -> Iterator[GatewayWorker]:
    with open_gateway(model()) as doors:
        yield doors


def errors_by_stage(doors: GatewayWorker) -> dict[str, float]:
    """The worker's error counter, as Prometheus reads it."""
    text = httpx.get(f"http://{doors.http}/metrics", verify=False, timeout=WAIT_S).text
    return {
        sample.labels["stage"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "skylane_request_errors_total"
    }


def statuses(doors: GatewayWorker, count: int) -> list[Status]:
    """Publishes frames one after the other; returns the status of each answer."""
    sender = Sender(doors.bus)
    return [sender.answer_to(frame(sequence)).status for sequence in range(count)]


@pytest.mark.parametrize(
    ("target", "stage"),
    [
        ("cloud.frontends.mqtt.peek", "mqtt"),
        ("cloud.serving.decoding.unpack_frame", "decoding"),
        ("shared.imaging.image_codecs.decode", "decoding"),
        ("shared.imaging.image_codecs.encode_mask", "postprocessing"),
        ("cloud.frontends.mqtt.pack_result", "postprocessing"),
        ("shared.tasks.segmentation.SegmentationTask.result", "postprocessing"),
    ],
)
def test_a_stage_that_raises_fails_one_frame(
    doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch, target: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The frame is refused as `failed`, and the log has the traceback."""
    monkeypatch.setattr(target, raise_once(resolve_name(target)))
    with caplog.at_level(logging.ERROR, "skylane.cloud"):
        assert statuses(doors, 2) == [Status.FAILED, Status.ANSWERED]
    assert errors_by_stage(doors) == {stage: 1}
    (line,) = (record.msg for record in caplog.records if isinstance(record.msg, dict))
    assert (line["stage"], type(line["exc_info"])) == (stage, ArtificialError)  # Rendered with its traceback.


def test_an_engine_that_raises_fails_one_frame() -> None:
    """An exception that the engine's interface does not name: the frame is tried twice, then `failed`."""
    failures = iter((True, True))

    def act() -> None:
        if next(failures, False):
            raise ArtificialError("artificial")

    with open_gateway(model(act)) as doors:
        assert statuses(doors, 2) == [Status.FAILED, Status.ANSWERED]
        assert errors_by_stage(doors) == {"inference": 2}


def test_a_probe_that_raises_gets_no_reply(doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next probe gets one."""
    monkeypatch.setattr("cloud.frontends.clock_responder.unpack_probe", raise_once(lambda _: Probe("s1", 2, 3)))
    echoes: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    doors.bus.subscribe(topics.ECHOES.filter(), 0, echoes.put)
    for _ in range(2):
        doors.bus.publish(topics.PROBES.of(worker="w", vehicle="car"), pack_probe(Probe("s1", 2, 3)), qos=0)
    assert unpack_echo(echoes.get(timeout=WAIT_S).payload).sequence == 2
    assert errors_by_stage(doors) == {"probe": 1}


@pytest.mark.parametrize("verb", [Verb.LIST, Verb.LOAD])
def test_a_control_request_that_raises_is_refused(
    doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    """Both control threads serve the next request."""
    monkeypatch.setattr(ModelSwap, "load", raise_once(ModelSwap.load))
    monkeypatch.setattr("cloud.frontends.control.ModelEntry", raise_once(ModelEntry))
    replies: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    doors.bus.subscribe(topics.REPLIES.filter(operator="me"), 1, replies.put)

    def ask(nonce: str) -> str:
        request = ControlRequest(operator="me", nonce=nonce, verb=verb, model="tiny")
        doors.bus.publish(topics.CONTROL.of(worker="w", verb=verb.value), pack_request(request), qos=1)
        return unpack_reply(replies.get(timeout=WAIT_S).payload).error

    assert "internal error (ArtificialError)" in ask("n1")
    assert "internal error" not in ask("n2")
    assert errors_by_stage(doors) == {"control": 1}


def _posted(doors: GatewayWorker, path: str, **request: Any) -> int:
    return httpx.post(f"http://{doors.http}{path}", verify=False, timeout=WAIT_S, **request).status_code


def _got(doors: GatewayWorker, path: str) -> int:
    return httpx.get(f"http://{doors.http}{path}", verify=False, timeout=WAIT_S).status_code


HTTP_CALLS: dict[str, tuple[str, Callable[[GatewayWorker], int]]] = {
    "predict": ("find", lambda doors: _posted(doors, "/v1/models/tiny:predict", json=INFERENCE)),
    "detect": (
        "put",
        lambda doors: _posted(doors, "/api/detect", files={"file": cv2.imencode(".png", PIXELS)[1].tobytes()}),
    ),
    "metadata": ("find", lambda doors: _got(doors, "/v2/models/tiny")),
    "metrics": ("cards", lambda doors: _got(doors, "/metrics")),
    "health": ("cards", lambda doors: _got(doors, "/healthz")),
}


def test_an_http_handler_that_raises_answers_500(doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request of the same kind succeeds."""
    for call, (method, ask) in HTTP_CALLS.items():
        with monkeypatch.context() as patched:
            patched.setattr(Submission, method, raise_once(getattr(Submission, method)))
            assert [ask(doors), ask(doors)] == [500, 200], call
    assert errors_by_stage(doors) == {"http": len(HTTP_CALLS)}


PREDICT = message_class("tensorflow.serving.PredictRequest")(model_spec={"name": "tiny"})
PREDICT.inputs["input"].CopyFrom(to_tensor_proto(PIXELS[None]))
GRPC_CALLS: list[tuple[str, str, bytes]] = [
    ("put", "/skylane.v1.Worker/Answer", bytes(pack(pack_frame(frame(0))))),
    ("find", "/tensorflow.serving.PredictionService/Predict", PREDICT.SerializeToString()),
    ("cards", "/inference.GRPCInferenceService/ServerReady", b""),
]


def test_a_grpc_handler_that_raises_answers_internal(doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One service of each kind; the next call on the same connection is answered."""
    with grpc.insecure_channel(doors.grpc) as channel:
        for method, path, request in GRPC_CALLS:
            ask: Any = channel.unary_unary(path)
            with monkeypatch.context() as patched:
                patched.setattr(Submission, method, raise_once(getattr(Submission, method)))
                with pytest.raises(grpc.RpcError) as raised:
                    ask(request, timeout=WAIT_S)
            assert raised.value.code() is grpc.StatusCode.INTERNAL, path
            assert "ArtificialError" not in str(raised.value.details())
            ask(request, timeout=WAIT_S)
    assert errors_by_stage(doors) == {"grpc": len(GRPC_CALLS)}


def test_a_grpc_stream_that_raises_answers_internal(doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is raised on the thread that reads the stream, not on the one that answers it."""
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    with monkeypatch.context() as patched, grpc.insecure_channel(doors.grpc) as channel:
        patched.setattr("cloud.gateway.grpc.open_inference.read_request", raise_once(lambda _: None))
        ask: Any = channel.stream_stream(path)
        with pytest.raises(grpc.RpcError) as raised:
            list(ask(iter([b""]), timeout=WAIT_S))
        assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert errors_by_stage(doors) == {"grpc": 1}
    assert _got(doors, "/healthz") == 200


def test_deeply_nested_json_is_refused(doors: GatewayWorker) -> None:
    """A body of 4 KB once ended the whole worker."""
    for depth in (9, 64, 65, 129, 900):
        body = b'{"instances": ' + b"[" * depth + b"1, " * 2000 + b"1" + b"]" * depth + b"}"
        for name, refused in (("tiny", (400,)), ("absent", (400, 404))):
            headers = {"Content-Type": "application/json"}
            assert _posted(doors, f"/v1/models/{name}:predict", content=body, headers=headers) in refused
    assert errors_by_stage(doors) == {}
    assert _posted(doors, "/v1/models/tiny:predict", json=INFERENCE) == 200


def test_many_errors_make_the_worker_unhealthy(doors: GatewayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orchestrator may replace the worker, which continues to serve."""
    with monkeypatch.context() as patched:

        def fail(*_: Any) -> None:
            raise ArtificialError("artificial")

        patched.setattr(Submission, "find", fail)
        for _ in range(UNHEALTHY_ERRORS):
            assert _got(doors, "/v2/models/tiny") == 500
    answer = httpx.get(f"http://{doors.http}/healthz", verify=False, timeout=WAIT_S)
    assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
    assert statuses(doors, 1) == [Status.ANSWERED]


def test_a_flood_of_errors_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Tracebacks are limited per minute, the counter is not."""
    errors = RequestErrors()
    with caplog.at_level(logging.ERROR, "skylane.cloud"):
        for _ in range(1000):
            errors.record("http", ArtificialError("artificial"))
    assert errors.counts == {"http": 1000}
    assert 1 <= len(caplog.records) < 100
