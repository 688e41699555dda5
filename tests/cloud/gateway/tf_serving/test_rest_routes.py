"""TensorFlow Serving's REST, asked as its documentation asks it."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Placement
from cloud.engines.tensorflow.library import tf
from cloud.gateway.settings import GatewaySettings
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import encode
from shared.messages import results
from shared.messages.frame import RequestOptions, Status, pack_frame, unpack_result
from shared.messages.model_card import Task
from tests.cloud.conftest import Workshop
from tests.support.gateway import open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

WAIT_S = 60.0
HTTP_ALONE = GatewaySettings(http="127.0.0.1:0")


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[httpx.Client]:
    with (
        open_gateway(model(), model(name="dotted", version="1.2"), gateway=HTTP_ALONE) as doors,
        httpx.Client(base_url=f"http://{doors.http}/v1/models", timeout=WAIT_S) as client,
    ):
        yield client


def noise(count: int) -> npt.NDArray[np.uint8]:
    """uint8 N×4×6×3."""
    return np.random.default_rng(3).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)


def b64(data: bytes) -> dict[str, str]:
    """Bytes as TensorFlow Serving's JSON has them."""
    return {"b64": base64.b64encode(data).decode()}


def test_an_ordinary_call_gets_what_the_direct_call_gives(workshop: Workshop) -> None:
    """The four lines that everybody's client has work unchanged, on a real model, bit by bit."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    pictures = np.random.default_rng(1).integers(0, 256, (3, 8, 12, 3), np.uint8)
    with workshop.repository.load("net", Placement(device="cpu")) as net:
        direct = net.predict(pictures)
        with open_gateway(net, gateway=HTTP_ALONE) as doors:
            data = json.dumps({"signature_name": "serving_default", "instances": pictures.tolist()})
            answer = httpx.post(f"http://{doors.http}/v1/models/net:predict", content=data, timeout=WAIT_S)
    assert answer.json() == {"predictions": direct.tolist()}
    assert "inferred;dur=" in answer.headers["server-timing"]


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
    """Both formats, named and with the shorthand of a model with one input, numbers and encoded pictures."""
    assert client.post("/tiny:predict", json=body).json() == {key: noise(2)[..., 0].tolist()}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " : ")])
@pytest.mark.parametrize("rows", ["bare", "named", "column"])
def test_large_bodies_give_the_same(client: httpx.Client, separators: tuple[str, str], rows: str) -> None:
    """Large lists of numbers take another way, which must not be seen, whatever stands between them."""
    pixels = noise(60)
    told: Any = pixels.tolist()
    body = {"bare": {"instances": told}, "named": {"instances": [{"input": each} for each in told]}}.get(
        rows, {"signature_name": "serving_default", "inputs": {"input": told}}
    )
    text = json.dumps(body, separators=separators)
    (answer,) = client.post("/tiny:predict", content=text).json().values()
    assert answer == pixels[..., 0].tolist()


def test_finished_results_come_in_base64(client: httpx.Client) -> None:
    """`…_bytes` says that a string is no text; the codecs are the headers' to say."""
    pixels = noise(1)[0]
    body = {"signature_name": "packed", "instances": [b64(pixels.tobytes())]}
    told = {"Skylane-Codec": "raw", "Skylane-Mask-Codec": "rle"}
    (packed,) = client.post("/tiny:predict", json=body, headers=told).json()["predictions"]
    mask = results.decode(Task.SEGMENTATION, base64.b64decode(packed["b64"]), "rle", (HEIGHT, WIDTH))
    np.testing.assert_array_equal(mask, pixels[..., 0])


def called(client: httpx.Client, data: bytes, message: Any) -> tuple[dict[str, Any], Any]:
    """A vehicle's call: the answer's JSON, and the mask message beside it."""
    header = base64.urlsafe_b64encode(pack_frame(msgspec.structs.replace(message, data=b""))).rstrip(b"=").decode()
    body = {"signature_name": "packed", "instances": [{"image_bytes": b64(data)}]}
    answer = client.post("/tiny:predict", json=body, headers={"Skylane-Frame": header})
    assert answer.status_code == 200, answer.text
    mask = answer.headers["skylane-mask"]
    return answer.json(), unpack_result(base64.urlsafe_b64decode(mask + "=" * (-len(mask) % 4)))


def test_a_vehicles_call_carries_its_frame_and_gets_its_mask_message(client: httpx.Client) -> None:
    """The same ids, stamps and outcomes as over the broker, at a standard door."""
    message = frame(5)
    told, answered = called(client, bytes(message.data), message)
    assert (answered.id, answered.status) == (message.id, Status.ANSWERED)
    data = base64.b64decode(told["predictions"][0]["b64"])
    np.testing.assert_array_equal(results.decode(Task.SEGMENTATION, data, "raw", (HEIGHT, WIDTH)), np.full((4, 6), 5))


def test_a_vehicle_is_told_what_became_of_its_frame(client: httpx.Client) -> None:
    """A refused frame is an outcome of the run, not a broken call."""
    told, answered = called(
        client, b"no picture", msgspec.structs.replace(frame(6), codec="jpeg", want=RequestOptions("raw"))
    )
    assert told == {"predictions": []}
    assert answered.status is Status.REJECTED


def test_status_is_told_as_documented(client: httpx.Client) -> None:
    """A client waits for this before its first call."""
    told = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("tiny", "tiny/versions/1", "tiny/labels/1"):
        assert client.get(path).json() == {"model_version_status": [told]}


def test_metadata_is_told_as_documented(client: httpx.Client) -> None:
    """Whole numbers of 64 bits are strings in it, as everywhere in the JSON of protocol buffers."""
    told = client.get("tiny/versions/1/metadata").json()
    assert told["model_spec"] == {"name": "tiny", "signature_name": "", "version": "1"}
    default = told["metadata"]["signature_def"]["signature_def"]["serving_default"]
    sides = [{"size": str(size), "name": ""} for size in (-1, HEIGHT, WIDTH, 3)]
    assert default["inputs"]["input"] == {
        "dtype": "DT_UINT8",
        "tensor_shape": {"dim": sides, "unknown_rank": False},
        "name": "input:0",
    }
    assert default["method_name"] == "tensorflow/serving/predict"


def test_versions_are_asked_for_by_number_or_label(client: httpx.Client) -> None:
    """Ours may have dots; TensorFlow Serving's are whole numbers."""
    (told,) = client.get("dotted/labels/1.2").json()["model_version_status"]
    body = {"instances": noise(1).tolist()}
    for path in ("labels/1.2", f"versions/{told['version']}"):
        assert client.post(f"/dotted/{path}:predict", json=body).status_code == 200
    assert client.post("/dotted/versions/1:predict", json=body).status_code == 404


PICTURE = noise(1).tolist()


@pytest.mark.parametrize(
    ("path", "body", "code", "told"),
    [
        ("other:predict", {"instances": PICTURE}, 404, "other is not served here"),
        ("tiny/versions/9:predict", {"instances": PICTURE}, 404, "tiny version 9 is not served here: ask for 1 (1)"),
        ("tiny/versions/one:predict", {"instances": PICTURE}, 400, "'one' is no whole number"),
        ("tiny:classify", {"examples": []}, 501, "call :predict"),
        ("tiny:predict", {}, 400, "neither instances nor inputs"),
        ("tiny:predict", {"instances": PICTURE, "inputs": PICTURE}, 400, "instances and inputs: send one"),
        ("tiny:predict", {"instances": PICTURE, "signature_name": "x"}, 400, "no signature 'x': choose one of serving"),
        ("tiny:predict", {"instances": PICTURE, "signature_name": 7}, 400, "signature_name is the number 7"),
        ("tiny:predict", {"instances": 7}, 400, "instances is the number 7: send a list"),
        ("tiny:predict", {"inputs": 7}, 400, "input is the number 7: send a list"),
        ("tiny:predict", {"inputs": {"x": PICTURE}}, 400, "inputs x: signature serving_default takes input alone"),
        ("tiny:predict", {"instances": [{"input": 1}, {"x": 1}]}, 400, "instances differ in their names"),
        ("tiny:predict", {"instances": []}, 400, "input has shape [0]: send [n, 4, 6, 3]"),
        ("tiny:predict", {"instances": [[]]}, 400, "input has shape [1, 0]: send [n, 4, 6, 3]"),
        ("tiny:predict", {"instances": [[1, 2], [3]]}, 400, "not all of one size"),
        ("tiny:predict", {"instances": [[1.5]]}, 400, "holds the number 1.5: send uint8 pixels"),
        ("tiny:predict", {"instances": [[256]]}, 400, "holds 256 to 256: send uint8 pixels"),
        ("tiny:predict", {"instances": [[-1, 3]]}, 400, "holds -1 to 3: send uint8 pixels"),
        ("tiny:predict", {"instances": [[1 << 70]]}, 400, "no JSON: BIGINT_ERROR"),
        ("tiny:predict", {"instances": [[True]]}, 400, "holds a list: send uint8"),
        ("tiny:predict", {"instances": [True]}, 400, "holds a boolean"),
        ("tiny:predict", {"instances": [None]}, 400, "holds null"),
        ("tiny:predict", {"instances": ["text"]}, 400, "input is strings: send uint8"),
        ("tiny:predict", {"signature_name": "image", "instances": [{"b64": "?"}]}, 400, "b64 is no base64"),
        ("tiny:predict", {"signature_name": "image", "instances": [{"b64": 7}]}, 400, '{"b64": "…"}'),
        ("tiny:predict", {"signature_name": "image", "instances": [b64(b"text")]}, 422, "JPEG"),
        ("tiny:predict", {"signature_name": "image", "inputs": b64(b"text")}, 400, "image_bytes is an object: send a list"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_its_code(
    client: httpx.Client, path: str, body: dict[str, Any], code: int, told: str
) -> None:
    """A caller learns what was given and what is expected, in TensorFlow Serving's form."""
    answer = client.post(f"/{path}", json=body)
    assert told in answer.json()["error"]
    assert (answer.status_code, list(answer.json())) == (code, ["error"])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"instances": NaN}', b'{"instances": ' + b"[" * 100_000])
def test_a_body_that_is_no_json_is_refused(client: httpx.Client, body: bytes) -> None:
    """A broken client learns so, and costs nobody anything."""
    answer = client.post("/tiny:predict", content=body)
    assert answer.status_code == 400
    assert "error" in answer.json()


@pytest.mark.parametrize(
    ("row", "code", "told"),
    [
        ([1.5], 400, "holds the number 1.5"),
        ([256], 400, "holds 0 to 256"),
        ([1, 2], 400, "not all of one size"),
        (["x"], 400, "numbers and something else"),
    ],
)
def test_one_wrong_number_among_many_is_named(client: httpx.Client, row: list[Any], code: int, told: str) -> None:
    """Where the fast way gives up, the slow one says why."""
    answer = client.post("/tiny:predict", json={"instances": [[[[0]] * 3000, [*[[0]] * 2999, row]]]})
    assert (answer.status_code, told in answer.json()["error"]) == (code, True)


def test_one_long_text_among_many_short_ones_takes_no_more_memory_than_it_has(client: httpx.Client) -> None:
    """Given to NumPy, a megabyte and a million empty texts would become four terabytes."""
    answer = client.post("/tiny:predict", json={"instances": [1, "a" * (1 << 20), *[""] * (1 << 20)]})
    assert (answer.status_code, "numbers and something else" in answer.json()["error"]) == (400, True)


def test_half_a_pair_is_refused_as_no_text(client: httpx.Client) -> None:
    """It could not be told in the answer either, which would be a fault of the worker, and end it."""
    answer = client.post("/tiny:predict", content=b'{"inputs": {"\\ud800": [1]}}')
    assert (answer.status_code, "no JSON" in answer.json()["error"]) == (400, True)


def test_more_values_than_are_read_one_by_one_are_refused(client: httpx.Client) -> None:
    """A small body must not become gigabytes of lists."""
    answer = client.post("/tiny:predict", content=b'{"instances": [' + b"[]," * (5 << 20) + b"[]]}")
    assert answer.status_code == 413
    assert "send encoded pictures" in answer.json()["error"]


@pytest.mark.parametrize("keys", [("instances", "v1/models/net:predict"), ("inputs", "v2/models/net/infer")])
def test_an_answer_whose_text_is_too_large_is_refused_alone(workshop: Workshop, keys: tuple[str, str]) -> None:
    """Its numbers would fit: a third of one takes four bytes, and as text twenty."""
    workshop.add(
        "net",
        workshop.graph(lambda scores: tf.cast(scores, tf.float32) * 0 + 1 / 3),
        task="tensors",
        outputs={"of": {"tensor": "prediction:0", "kind": "tensor"}},
        output=None,
        labels=[],
    )
    name, path = keys
    settings = replace(HTTP_ALONE, max_message_bytes=12 << 10)

    def body(count: int) -> Any:
        pictures = np.zeros((count, 8, 12, 3), np.uint8)
        told = {"name": "input", "datatype": "UINT8", "shape": pictures.shape, "data": pictures.ravel().tolist()}
        return {name: pictures.tolist() if name == "instances" else [told]}

    with (
        workshop.repository.load("net", Placement(device="cpu")) as net,
        open_gateway(net, gateway=settings) as doors,
        httpx.Client(base_url=f"http://{doors.http}", timeout=WAIT_S) as client,
    ):
        refused = client.post(path, json=body(2))  # 3,840 bytes of numbers.
        assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        assert "outputs of more than 12288 bytes" in refused.text
        assert client.post(path, json=body(1)).status_code == httpx.codes.OK
