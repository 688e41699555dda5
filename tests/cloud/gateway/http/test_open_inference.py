"""The Open Inference Protocol's REST routes."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cloud.gateway.common.open_inference import InferRequest
from cloud.gateway.http.open_inference import read_request
from tests.support.gateway import GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, model

CAR_TOKEN, ANYONE_TOKEN = "a-token-of-the-car", "a-token-of-anyone"
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/tiny/infer"


@pytest.fixture(name="client")
def _client(worker: GatewayWorker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{worker.http}", timeout=60.0) as client:
        yield client


def call_with_image(data: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a call with one image as binary data, which requests binary outputs."""
    framed = len(data).to_bytes(4, "little") + data
    entry = {"name": "image_bytes", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(framed)}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return head + framed, {LENGTH: str(len(head))}


@pytest.mark.parametrize(
    ("path", "status", "has_head"),
    [
        ("/healthz", 200, True),
        ("/v2/health/live", 200, True),
        ("/v2/health/ready", 200, True),
        ("/v2/models/tiny/ready", 200, True),
        ("/v2/models/tiny/versions/1/ready", 200, True),
        ("/v2/models/none/ready", 404, True),
        ("/v2", 200, False),
        ("/v2/models/tiny/versions/1/config", 200, False),
        ("/v2/models/none", 404, False),
        ("/v2/models/tiny/versions/9", 404, False),
        ("/v2/models/none/config", 404, False),
    ],
)
def test_get_routes_respond_or_are_not_found(client: httpx.Client, path: str, status: int, *, has_head: bool) -> None:
    """Load balancers evaluate only the status code, and many use HEAD, which must have no body."""
    response = client.get(path)
    assert (response.status_code, type(response.json())) == (status, dict)
    head = client.head(path)
    assert (head.status_code, head.content) == (status if has_head else 405, b"")


def test_json_requests_have_json_responses(client: httpx.Client) -> None:
    """This is the form for a first try with curl; a header has the stage durations."""
    entry = {"name": "input", "datatype": "UINT8", "shape": [1, HEIGHT, WIDTH, 3], "data": [9] * HEIGHT * WIDTH * 3}
    response = client.post(INFER, json={"id": "a", "inputs": [entry], "outputs": [{"name": "mask"}]})
    assert response.json() == {
        "model_name": "tiny",
        "model_version": "1",
        "id": "a",
        "outputs": [{"name": "mask", "datatype": "UINT8", "shape": [1, HEIGHT, WIDTH], "data": [9] * HEIGHT * WIDTH}],
    }
    assert response.headers["content-type"] == "application/json"
    assert "inferred;dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("binary", [b"", b"\0"])
def test_large_json_is_read_in_another_thread(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, binary: bytes
) -> None:
    """It would block all other calls in the server's thread, also if binary data follows."""
    threads: list[str] = []

    def watched(*arguments: Any) -> InferRequest:
        threads.append(threading.current_thread().name)
        return read_request(*arguments)

    monkeypatch.setattr("cloud.gateway.http.open_inference.read_request", watched)
    head = json.dumps({"inputs": [], "id": "x" * (1 << 17)}).encode()
    response = client.post(INFER, content=head + binary, headers={LENGTH: str(len(head))})
    assert response.status_code == 400
    assert "http" not in threads


def test_errors_have_the_form_of_the_protocol(client: httpx.Client) -> None:
    """The only key is `error`, which clients show to their users."""
    response = client.post(INFER, content=b"{")
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert client.post(INFER, content=b"{}", headers={"Content-Encoding": "br"}).status_code == 415
    assert client.post(INFER, content=b"no gzip", headers={"Content-Encoding": "gzip"}).status_code == 400
    body, headers = call_with_image(b"not an image")
    assert client.post(INFER, content=body, headers=headers).status_code == 422


@pytest.fixture(name="tokens")
def _tokens(tmp_path: Any) -> Any:
    file = tmp_path / "tokens"
    file.write_text(f"car {CAR_TOKEN}\n* {ANYONE_TOKEN}\n")
    return file


def test_a_vehicles_token_does_not_allow_to_unload_a_model(tokens: Any) -> None:
    """It lists the models; a token of anyone allows to unload one."""
    with (
        open_gateway(model(), http="127.0.0.1:0", tokens=tokens) as worker,
        httpx.Client(base_url=f"http://{worker.http}", timeout=60.0) as client,
    ):
        client.headers["Authorization"] = f"Bearer {CAR_TOKEN}"
        assert client.post("/v2/repository/index", json={"ready": True}).json()[0]["state"] == "READY"
        assert client.post("/v2/repository/index", json={"ready": [1, 2]}).status_code == 200
        assert client.post("/v2/repository/models/tiny/unload").status_code == 403
        client.headers["Authorization"] = f"Bearer {ANYONE_TOKEN}"
        unload = "/v2/repository/models/tiny/unload"
        assert client.post(unload, json={"parameters": [1, 2]}).status_code == 400  # Lists of numbers become arrays.
        assert client.post(unload).status_code == 200
        assert client.post("/v2/repository/index").json() == []
        assert client.get("/v2/models/tiny/ready").status_code == 404
