"""TensorFlow Serving's REST routes, called as in its documentation."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from cloud.gateway.http.tf_serving import write_predict
from cloud.serving.errors import ApiError
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import encode
from shared.task import task_named
from tests.support.gateway import WAIT_S, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, model


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[httpx.Client]:
    with (
        open_gateway(model(), model(name="dotted", version="1.2"), http="127.0.0.1:0") as worker,
        httpx.Client(base_url=f"http://{worker.http}/v1/models", timeout=WAIT_S) as client,
    ):
        yield client


def noise(count: int) -> npt.NDArray[np.uint8]:
    """Random images, uint8 N×4×6×3."""
    return np.random.default_rng(3).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)


def b64(data: bytes) -> dict[str, str]:
    """Bytes in the JSON of TensorFlow Serving."""
    return {"b64": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"instances": noise(2).tolist()}, "predictions"),
        ({"instances": [{"input": each} for each in noise(2).tolist()]}, "predictions"),
        ({"inputs": noise(2).tolist()}, "outputs"),
        ({"inputs": {"input": noise(2).tolist()}, "signature_name": "serving_default"}, "outputs"),
        ({"signature_name": "image", "instances": [b64(bytes(encode(each, Layout.RGB8, "png", 90))) for each in noise(2)]}, "predictions"),
        ({"signature_name": "image", "instances": [{"image_bytes": b64(bytes(encode(each, Layout.RGB8, "png", 90)))} for each in noise(2)]}, "predictions"),
        ({"signature_name": "image", "inputs": {"image_bytes": [b64(bytes(encode(each, Layout.RGB8, "png", 90))) for each in noise(2)]}}, "outputs"),
    ],
)  # fmt: skip
def test_rows_and_columns_are_read_as_documented(client: httpx.Client, body: dict[str, Any], key: str) -> None:
    """Both formats, with and without the input's name, for numbers and encoded images."""
    assert client.post("/tiny:predict", json=body).json() == {key: noise(2)[..., 0].tolist()}


def test_packed_results_are_in_base64(client: httpx.Client) -> None:
    """A name that ends in `_bytes` marks binary strings; headers select the codecs."""
    pixels = noise(1)[0]
    body = {"signature_name": "packed", "instances": [b64(pixels.tobytes())]}
    headers = {"Skylane-Codec": "raw", "Skylane-Mask-Codec": "rle"}
    (packed,) = client.post("/tiny:predict", json=body, headers=headers).json()["predictions"]
    mask = task_named("segmentation").decode(base64.b64decode(packed["b64"]), "rle", (HEIGHT, WIDTH))
    np.testing.assert_array_equal(mask, pixels[..., 0])


def test_status_is_as_documented(client: httpx.Client) -> None:
    """Clients wait for this state before the first call."""
    version = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("tiny", "tiny/versions/1", "tiny/labels/1"):
        assert client.get(path).json() == {"model_version_status": [version]}


def test_metadata_is_as_documented(client: httpx.Client) -> None:
    """64-bit integers are strings, as always in the JSON of protocol buffers."""
    body = client.get("tiny/versions/1/metadata").json()
    assert body["model_spec"] == {"name": "tiny", "signature_name": "", "version": "1"}
    default = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    dims = [{"size": str(size), "name": ""} for size in (-1, HEIGHT, WIDTH, 3)]
    assert default["inputs"]["input"] == {
        "dtype": "DT_UINT8",
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": "input:0",
    }
    assert default["method_name"] == "tensorflow/serving/predict"


def test_a_version_is_selected_by_number_or_label(client: httpx.Client) -> None:
    """TensorFlow Serving's versions are whole numbers, but a Skylane version may be any name."""
    (status,) = client.get("dotted/labels/1.2").json()["model_version_status"]
    body = {"instances": noise(1).tolist()}
    for path in ("labels/1.2", f"versions/{status['version']}"):
        assert client.post(f"/dotted/{path}:predict", json=body).status_code == 200
    assert client.post("/dotted/versions/1:predict", json=body).status_code == 404


IMAGE = noise(1).tolist()


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [
        ("other:predict", {"instances": IMAGE}, 404, "other is not served"),
        ("tiny/versions/9:predict", {"instances": IMAGE}, 404, "tiny version 9 is not served: request 1 (1)"),
        ("tiny/versions/one:predict", {"instances": IMAGE}, 400, "'one' is not a whole number"),
        ("tiny:classify", {"examples": []}, 501, "call :predict"),
        ("tiny:predict", {}, 400, "neither instances nor inputs"),
        ("tiny:predict", {"instances": IMAGE, "inputs": IMAGE}, 400, "instances and inputs: send one"),
        ("tiny:predict", {"instances": IMAGE, "signature_name": "x"}, 400, "no signature 'x': choose one of serving"),
        ("tiny:predict", {"instances": IMAGE, "signature_name": 7}, 400, "signature_name is the number 7"),
        ("tiny:predict", {"instances": 7}, 400, "instances is the number 7: send a list"),
        ("tiny:predict", {"inputs": 7}, 400, "input is the number 7: send a list"),
        ("tiny:predict", {"inputs": {"x": IMAGE}}, 400, "inputs x: signature serving_default accepts input only"),
        ("tiny:predict", {"instances": [{"input": 1}, {"x": 1}]}, 400, "instances have different names"),
        ("tiny:predict", {"instances": []}, 400, "input has shape [0]: send [n, 4, 6, 3]"),
        ("tiny:predict", {"instances": [[]]}, 400, "input has shape [1, 0]: send [n, 4, 6, 3]"),
        ("tiny:predict", {"instances": [[1, 2], [3]]}, 400, "nested lists of equal lengths"),
        ("tiny:predict", {"instances": [[1.5]]}, 400, "has the number 1.5: send uint8 pixels"),
        ("tiny:predict", {"instances": [[256]]}, 400, "has a number outside the range of uint8: send 0 to 255"),
        ("tiny:predict", {"instances": [[-1, 3]]}, 400, "has a number outside the range of uint8: send 0 to 255"),
        ("tiny:predict", {"instances": [[1 << 70]]}, 400, "not valid JSON: BIGINT_ERROR"),
        ("tiny:predict", {"instances": [[True]]}, 400, "has a boolean: send uint8"),
        ("tiny:predict", {"instances": [True]}, 400, "has a boolean"),
        ("tiny:predict", {"instances": [None]}, 400, "has null"),
        ("tiny:predict", {"instances": ["text"]}, 400, "input is strings: send uint8"),
        ("tiny:predict", {"signature_name": "image", "instances": [{"b64": "?"}]}, 400, "b64 is not base64"),
        ("tiny:predict", {"signature_name": "image", "instances": [{"b64": 7}]}, 400, '{"b64": "…"}'),
        ("tiny:predict", {"signature_name": "image", "instances": [b64(b"text")]}, 422, "JPEG"),
        ("tiny:predict", {"signature_name": "image", "inputs": b64(b"text")}, 400, "image_bytes is an object: send a list"),
    ],
)  # fmt: skip
def test_an_invalid_call_has_a_status_and_a_message(
    client: httpx.Client, path: str, body: dict[str, Any], code: int, message: str
) -> None:
    """The message says what was sent and what is expected, in TensorFlow Serving's form."""
    response = client.post(f"/{path}", json=body)
    assert message in response.json()["error"]
    assert (response.status_code, list(response.json())) == (code, ["error"])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"instances": NaN}', b'{"instances": ' + b"[" * 100_000])
def test_a_malformed_body_is_rejected(client: httpx.Client, body: bytes) -> None:
    """A broken client receives an error, and other calls are not affected."""
    response = client.post("/tiny:predict", content=body)
    assert response.status_code == 400
    assert "error" in response.json()


def test_the_size_limit_applies_to_the_text_of_a_response() -> None:
    """The numbers would fit: one third takes four bytes, but twenty as text."""
    outputs = {"of": np.full((2, 8, 12, 5), 1 / 3, np.float32)}
    with pytest.raises(ApiError, match="outputs of more than 12288 bytes, as JSON: request fewer"):
        write_predict(outputs, is_row=True, max_bytes=12 << 10)
    assert write_predict({"of": outputs["of"][:1]}, is_row=True, max_bytes=12 << 10)
