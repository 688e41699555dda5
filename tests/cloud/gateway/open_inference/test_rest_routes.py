"""The Open Inference Protocol's REST routes."""

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace

from cloud.gateway.open_inference.json_messages import read_request
from cloud.gateway.open_inference.request import InferRequest
from cloud.gateway.settings import GatewaySettings
from shared.imaging import mask_codecs
from shared.messages.frame import Status, pack_frame, unpack_result
from tests.support.gateway import GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

CAR_TOKEN, ANYONE_TOKEN = "a-token-of-the-car", "a-token-of-anyone"
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/tiny/infer"


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0")) as worker:
        yield worker


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


def base64url(packed: bytes) -> str:
    """The form of bytes in a header."""
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/healthz", 200),
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2/models/tiny/ready", 200),
        ("/v2/models/tiny/versions/1/ready", 200),
        ("/v2/models/none/ready", 404),
    ],
)
def test_health_checks_support_head(client: httpx.Client, path: str, status: int) -> None:
    """Many load balancers use HEAD; a body would be read as the next response of the connection."""
    response = client.head(path)
    assert (response.status_code, response.content) == (status, b"")
    assert client.get(path).json()


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

    monkeypatch.setattr("cloud.gateway.open_inference.rest_routes.read_request", watched)
    head = json.dumps({"inputs": [], "id": "x" * (1 << 17)}).encode()
    response = client.post(INFER, content=head + binary, headers={LENGTH: str(len(head))})
    assert response.status_code == 400
    assert "http" not in threads


def test_a_vehicles_call_returns_its_mask_message(client: httpx.Client) -> None:
    """The frame message and the mask message are in headers."""
    sent = frame(7)
    body, headers = call_with_image(bytes(sent.data))
    packed = base64url(pack_frame(replace(sent, data=b"")))
    response = client.post(INFER, content=body, headers={**headers, "Skylane-Frame": packed})
    mask_header = response.headers["skylane-mask"]
    mask_message = unpack_result(base64.urlsafe_b64decode(mask_header + "=" * (-len(mask_header) % 4)))
    assert (mask_message.id, mask_message.status) == (sent.id, Status.ANSWERED)
    result = response.content[int(response.headers[LENGTH]) + 4 :]
    mask = mask_codecs.decode(result, mask_message.codec, (HEIGHT, WIDTH))
    np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), 7, np.uint8))


def test_a_vehicles_rejected_frame_is_not_an_error(client: httpx.Client) -> None:
    """The mask message has the status of the frame; the call itself succeeds."""
    sent = replace(frame(8), data=b"short")
    body, headers = call_with_image(bytes(sent.data))
    packed = base64url(pack_frame(replace(sent, data=b"")))
    response = client.post(INFER, content=body, headers={**headers, "Skylane-Frame": packed})
    mask_header = response.headers["skylane-mask"]
    mask_message = unpack_result(base64.urlsafe_b64decode(mask_header + "=" * (-len(mask_header) % 4)))
    assert (response.status_code, mask_message.id, mask_message.status) == (200, sent.id, Status.REJECTED)
    assert response.json()["outputs"] == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/none", 404),
        ("/v2/models/tiny/versions/9", 404),
        ("/v2/models/none/config", 404),
        ("/v2/models/none/ready", 404),
        ("/v2/models/tiny/ready", 200),
        ("/v2/models/tiny/versions/1/ready", 200),
        ("/v2/models/tiny/versions/1/config", 200),
        ("/v2/health/ready", 200),
        ("/v2", 200),
    ],
)
def test_get_routes_respond_or_are_not_found(client: httpx.Client, path: str, status: int) -> None:
    """Load balancers evaluate only the status code."""
    response = client.get(path)
    assert response.status_code == status
    assert isinstance(response.json(), dict)


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


def test_with_tokens_repository_calls_need_one(tokens: Any) -> None:
    """Health checks need none. A vehicle's token does not allow to unload a model."""
    with (
        open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", tokens=tokens)) as worker,
        httpx.Client(base_url=f"http://{worker.http}", timeout=60.0) as client,
    ):
        assert client.get("/v2/health/ready").status_code == 200
        for path in ("index", "models/tiny/load", "models/tiny/unload"):
            assert client.post(f"/v2/repository/{path}").status_code == 401
        assert client.get("/v2/models/tiny").status_code == 401
        client.headers["Authorization"] = f"Bearer {CAR_TOKEN}"
        assert [each["name"] for each in client.post("/v2/repository/index").json()] == ["tiny"]
        assert client.post("/v2/repository/index", json={"ready": True}).json()[0]["state"] == "READY"
        assert client.post("/v2/repository/models/tiny/unload").status_code == 403
        client.headers["Authorization"] = f"Bearer {ANYONE_TOKEN}"
        assert client.post("/v2/repository/models/tiny/unload").status_code == 200
        assert client.post("/v2/repository/index").json() == []
        assert client.get("/v2/models/tiny/ready").status_code == 404
