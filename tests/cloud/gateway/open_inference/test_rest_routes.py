"""The Open Inference Protocol's REST, spoken to by plain HTTP."""

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
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

TOKEN, ROOT = "a-token-of-the-car", "a-token-of-anyone"
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/tiny/infer"


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0")) as doors:
        yield doors


@pytest.fixture(name="client")
def _client(doors: Doors) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{doors.http}", timeout=60.0) as client:
        yield client


def picture(data: bytes) -> tuple[bytes, dict[str, str]]:
    """A call with one string in `image_bytes`, binary both ways: its body and headers."""
    framed = len(data).to_bytes(4, "little") + data
    entry = {"name": "image_bytes", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(framed)}}
    told = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return told + framed, {LENGTH: str(len(told))}


def coded(packed: bytes) -> str:
    """As headers carry bytes."""
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
def test_a_watcher_may_ask_for_the_status_alone(client: httpx.Client, path: str, status: int) -> None:
    """Many balancers ask by HEAD; a body behind it would be taken for the next answer of the connection."""
    told = client.head(path)
    assert (told.status_code, told.content) == (status, b"")
    assert client.get(path).json()


def test_plain_json_is_answered_in_plain_json(client: httpx.Client) -> None:
    """What anybody tries first, with curl; the worker's stages come along."""
    entry = {"name": "input", "datatype": "UINT8", "shape": [1, HEIGHT, WIDTH, 3], "data": [9] * HEIGHT * WIDTH * 3}
    answer = client.post(INFER, json={"id": "a", "inputs": [entry], "outputs": [{"name": "mask"}]})
    assert answer.json() == {
        "model_name": "tiny",
        "model_version": "1",
        "id": "a",
        "outputs": [{"name": "mask", "datatype": "UINT8", "shape": [1, HEIGHT, WIDTH], "data": [9] * HEIGHT * WIDTH}],
    }
    assert answer.headers["content-type"] == "application/json"
    assert "inferred;dur=" in answer.headers["server-timing"]


@pytest.mark.parametrize("behind", [b"", b"\0"])
def test_large_json_holds_nobody_up_even_with_binary_data_behind_it(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, behind: bytes
) -> None:
    """Read on the server's own thread, it would keep all other callers waiting."""
    threads: list[str] = []

    def watched(*given: Any) -> InferRequest:
        threads.append(threading.current_thread().name)
        return read_request(*given)

    monkeypatch.setattr("cloud.gateway.open_inference.rest_routes.read_request", watched)
    told = json.dumps({"inputs": [], "id": "x" * (1 << 17)}).encode()
    answer = client.post(INFER, content=told + behind, headers={LENGTH: str(len(told))})
    assert answer.status_code == 400
    assert "http" not in threads


def test_a_vehicles_call_is_answered_with_its_own_mask_message(client: httpx.Client) -> None:
    """All that the broker's frame message holds travels in a header, and all that its answer does comes back in one."""
    own = frame(7)
    body, headers = picture(bytes(own.data))
    packed = coded(pack_frame(replace(own, data=b"")))
    answer = client.post(INFER, content=body, headers={**headers, "Skylane-Frame": packed})
    mask_header = answer.headers["skylane-mask"]
    told = unpack_result(base64.urlsafe_b64decode(mask_header + "=" * (-len(mask_header) % 4)))
    assert (told.id, told.status) == (own.id, Status.ANSWERED)
    result = answer.content[int(answer.headers[LENGTH]) + 4 :]
    mask = mask_codecs.decode(result, told.codec, (HEIGHT, WIDTH))
    np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), 7, np.uint8))


def test_a_vehicle_is_told_why_its_frame_was_refused(client: httpx.Client) -> None:
    """The call went well; what became of the frame is in its mask message, as over the broker."""
    own = replace(frame(8), data=b"short")
    body, headers = picture(bytes(own.data))
    packed = coded(pack_frame(replace(own, data=b"")))
    answer = client.post(INFER, content=body, headers={**headers, "Skylane-Frame": packed})
    mask_header = answer.headers["skylane-mask"]
    told = unpack_result(base64.urlsafe_b64decode(mask_header + "=" * (-len(mask_header) % 4)))
    assert (answer.status_code, told.id, told.status) == (200, own.id, Status.REJECTED)
    assert answer.json()["outputs"] == []


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
def test_what_is_asked_by_its_path_is_told_or_not_found(client: httpx.Client, path: str, status: int) -> None:
    """Status codes are what balancers read."""
    answer = client.get(path)
    assert answer.status_code == status
    assert isinstance(answer.json(), dict)


def test_errors_are_in_the_protocols_form(client: httpx.Client) -> None:
    """One key, `error`, which clients show to their users."""
    answer = client.post(INFER, content=b"{")
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    assert client.post(INFER, content=b"{}", headers={"Content-Encoding": "br"}).status_code == 415
    assert client.post(INFER, content=b"no gzip", headers={"Content-Encoding": "gzip"}).status_code == 400
    body, headers = picture(b"no picture")
    assert client.post(INFER, content=body, headers=headers).status_code == 422


@pytest.fixture(name="tokens")
def _tokens(tmp_path: Any) -> Any:
    file = tmp_path / "tokens"
    file.write_text(f"car {TOKEN}\n* {ROOT}\n")
    return file


def test_orders_need_a_token_where_there_are_tokens(tokens: Any) -> None:
    """Whoever only watches needs none; who is nobody may neither look around nor unload what others use."""
    with (
        open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", tokens=tokens)) as doors,
        httpx.Client(base_url=f"http://{doors.http}", timeout=60.0) as client,
    ):
        assert client.get("/v2/health/ready").status_code == 200
        for path in ("index", "models/tiny/load", "models/tiny/unload"):
            assert client.post(f"/v2/repository/{path}").status_code == 401
        assert client.get("/v2/models/tiny").status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert [each["name"] for each in client.post("/v2/repository/index").json()] == ["tiny"]
        assert client.post("/v2/repository/index", json={"ready": True}).json()[0]["state"] == "READY"
        assert client.post("/v2/repository/models/tiny/unload").status_code == 403
        client.headers["Authorization"] = f"Bearer {ROOT}"
        assert client.post("/v2/repository/models/tiny/unload").status_code == 200
        assert client.post("/v2/repository/index").json() == []
        assert client.get("/v2/models/tiny/ready").status_code == 404
