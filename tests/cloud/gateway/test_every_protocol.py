"""What holds for every protocol of the gateway: masks are exact, calls need a token, malformed messages are rejected."""

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.gateway.grpc.server import SERVICES
from tests.support.gateway import WAIT_S, GatewayWorker, open_gateway
from tests.support.tiny_model import model
from tests.support.workshop import Workshop

IMAGES = np.random.default_rng(1).integers(0, 256, (3, 8, 12, 3), np.uint8)
TOKEN = "0123456789abcdef"
TOKENS = ("", "another-token-of-the-car", TOKEN)
HEALTH_CHECKS = ("/ServerLive", "/ServerReady", "/ModelReady")
METHODS = [f"/{service}/{method}" for service, methods in SERVICES.items() for method in methods]


@pytest.fixture(name="guarded", scope="module")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayWorker]:
    """A worker with a token for the name `car`."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"car {TOKEN}\n")
    with open_gateway(model(), http="127.0.0.1:0", grpc="127.0.0.1:0", tokens=tokens) as worker:
        yield worker


def by_tf_serving_grpc(worker: GatewayWorker) -> Any:
    """Calls with TensorFlow Serving's stub."""
    request: Any = import_module("tensorflow_serving.apis.predict_pb2").PredictRequest()
    request.model_spec.name = "net"
    request.inputs["input"].CopyFrom(tf.make_tensor_proto(IMAGES))
    stubs: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc")
    with grpc.insecure_channel(worker.grpc) as channel:
        response = stubs.PredictionServiceStub(channel).Predict(request, WAIT_S)
    assert (list(response.outputs), response.model_spec.version.value) == (["mask"], 1)
    return tf.make_ndarray(response.outputs["mask"])


def by_tf_serving_rest(worker: GatewayWorker) -> Any:
    """Calls as in TensorFlow Serving's documentation."""
    data = json.dumps({"signature_name": "serving_default", "instances": IMAGES.tolist()})
    response = httpx.post(f"http://{worker.http}/v1/models/net:predict", content=data, timeout=WAIT_S)
    assert "inferred;dur=" in response.headers["server-timing"]
    return np.array(response.json()["predictions"], np.uint8)


def by_triton_client(worker: GatewayWorker, transport: str) -> Any:
    """Calls with Triton's client."""
    library: Any = import_module(f"tritonclient.{transport}")
    tensor = library.InferInput("input", IMAGES.shape, "UINT8")
    tensor.set_data_from_numpy(IMAGES)
    with library.InferenceServerClient(getattr(worker, transport)) as client:
        return client.infer("net", [tensor]).as_numpy("mask")


def test_masks_are_those_of_the_direct_call(workshop: Workshop) -> None:
    """The usual clients of each protocol work unchanged with a real model, and every bit is equal."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    with workshop.open("net") as net:
        direct = net.predict(IMAGES)
        with open_gateway(net) as worker:
            masks = [by_tf_serving_grpc(worker), by_tf_serving_rest(worker)]
            masks += [by_triton_client(worker, transport) for transport in ("grpc", "http")]
    for mask in masks:
        np.testing.assert_array_equal(mask, direct)
        assert mask.dtype == np.uint8


def code_of(worker: GatewayWorker, method: str, request: bytes, token: str) -> grpc.StatusCode:
    """The status code of a call, which is cancelled after its first response."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(worker.grpc) as channel:
        start: Any = channel.stream_stream(method)
        call = start(iter([request]), timeout=WAIT_S, metadata=metadata)
        try:
            next(call)
        except grpc.RpcError:
            code: grpc.StatusCode = call.code()
            return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS)
def test_a_grpc_method_needs_a_token_unless_it_is_a_health_check(guarded: GatewayWorker, method: str) -> None:
    """A method that forgets to authenticate its callers would be open to everyone."""
    is_rejected = [code_of(guarded, method, b"", token) is grpc.StatusCode.UNAUTHENTICATED for token in TOKENS]
    assert is_rejected == ([False] * 3 if method.endswith(HEALTH_CHECKS) else [True, True, False])


@pytest.mark.parametrize("method", ["Answer", "Probe", "Predict", "GetModelMetadata", "GetModelStatus", "ModelInfer"])
def test_a_malformed_message_is_an_invalid_argument(guarded: GatewayWorker, method: str) -> None:
    """A broken client receives an error, and other calls are not affected."""
    (path,) = (each for each in METHODS if each.endswith(f"/{method}"))
    for message in (b"\xff\xff", b"\x0a\x05abc"):
        assert code_of(guarded, path, message, TOKEN) is grpc.StatusCode.INVALID_ARGUMENT


def test_an_http_route_needs_a_token_unless_it_is_a_health_check(guarded: GatewayWorker) -> None:
    """A route that forgets to authenticate its callers would be open to everyone."""
    with httpx.Client(base_url=f"http://{guarded.http}", timeout=WAIT_S) as client:
        document = client.get("/openapi.json").json()
        paths = document["paths"]
        status = {
            path: client.request(method, path.format(model="tiny", version="1", label="1")).status_code
            for path, methods in paths.items()
            for method in methods
        }
        health = {path for path in paths if path.endswith(("/healthz", "/live", "/ready"))}
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert client.get("/v2/models/tiny").status_code == 200
    assert len(paths) > 20
    assert document["components"]["securitySchemes"]  # The page at /docs then has a field for the token.
    assert {path for path, code in status.items() if code == 200} == health
    assert {code for path, code in status.items() if path not in health} == {401}
