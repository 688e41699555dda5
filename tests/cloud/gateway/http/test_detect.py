"""`POST /api/detect`."""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.models.manifest import OutputKind, OutputSection
from tests.support.gateway import GatewayWorker, open_gateway
from tests.support.http_calls import PIXELS, detect, png
from tests.support.tiny_model import HEIGHT, WIDTH, Engine, model


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.png").write_bytes(png(PIXELS))
    folder = tmp_path_factory.mktemp("images")
    (folder / "left").mkdir()
    (folder / "left" / "0001.png").write_bytes(png(PIXELS))
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "away").symlink_to(outside)
    (folder / "text.png").write_text("not an image")
    os.mkfifo(folder / "pipe.png")
    return folder


@pytest.fixture(name="worker", scope="module")
def _worker(folder: Path) -> Iterator[GatewayWorker]:
    with open_gateway(model(), http="127.0.0.1:0", images=folder) as worker:
        yield worker


def test_a_mask_is_returned_as_shares_and_as_a_png(worker: GatewayWorker) -> None:
    """The result equals exactly what a vehicle receives."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[: HEIGHT // 2, :, 2] = 1  # Red, the first channel of RGB: the class of the upper half.
    body = detect(worker, files={"file": png(pixels)}).json()
    assert [(share["class_id"], share["share"]) for share in body["shares"]] == [(0, 0.5), (1, 0.5)]
    mask = cv2.imdecode(np.frombuffer(base64.b64decode(body["mask"]), np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(mask, pixels[..., 2])
    assert body["picture"] == {"height": HEIGHT, "width": WIDTH}
    assert {"prepared", "inferred", "total"} <= body["times_ms"].keys()


@pytest.mark.parametrize(
    "request_", [{"json": {"path": "left/0001.png"}}, {"data": {"path": "left/0001.png"}}, {"data": {"path": "left/0001.png"}, "files": {"x": b""}}]
)  # fmt: skip
def test_an_image_is_read_by_path(worker: GatewayWorker, request_: dict[str, Any]) -> None:
    """The path may be in JSON or in a form of either type."""
    assert detect(worker, **request_).json()["shares"][0]["class_id"] == 7


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../outside0/secret.png", 400),
        ("left/../link.png", 400),
        ("/etc/passwd", 400),
        ("left//0001.png", 400),
        ("left/0001.png\0", 400),
        ("link.png", 404),
        ("away/secret.png", 404),
        ("pipe.png", 404),
        ("left", 404),
        ("\ud800", 400),
        ("nothing.png", 404),
        ("text.png", 422),
    ],
)
def test_a_path_cannot_leave_the_folder(worker: GatewayWorker, path: str, status: int) -> None:
    """Neither upwards nor through a link; and a pipe must not block the worker."""
    response = detect(worker, content=json.dumps({"path": path}), headers={"content-type": "application/json"})
    assert response.status_code == status
    assert "error" in response.json()


def test_grey_and_transparent_images_are_accepted(worker: GatewayWorker) -> None:
    """People have images of all kinds; only frames of vehicles are limited to what cameras produce."""
    grey = detect(worker, files={"file": png(PIXELS[..., 0])}).json()
    transparent = detect(worker, files={"file": png(np.dstack([PIXELS, PIXELS[..., :1]]))}).json()
    assert grey["shares"] == transparent["shares"] == [{"class_id": 7, "name": "class-7", "share": 1.0}]


def test_the_exif_rotation_is_applied(worker: GatewayWorker) -> None:
    """Phones store upright photographs sideways; boxes must refer to the image as people see it."""
    _, data = cv2.imencode(".jpg", PIXELS)
    jpeg = data.tobytes()
    orientation = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    rotated = jpeg[:2] + b"\xff\xe1" + (len(orientation) + 2).to_bytes(2, "big") + orientation + jpeg[2:]
    response = detect(worker, content=rotated, headers={"content-type": "image/jpeg"})
    assert response.json()["picture"] == {"height": WIDTH, "width": HEIGHT}


def test_the_annotated_image_is_returned_in_json_or_alone(worker: GatewayWorker) -> None:
    """`output=1` adds it to the JSON; with an Accept header it is the whole response."""
    embedded = detect(worker, files={"file": png(PIXELS)}, data={"output": "1"}).json()["annotated"]
    alone = detect(worker, files={"file": png(PIXELS)}, headers={"accept": "image/png"})
    assert alone.headers["content-type"] == "image/png"
    for data in (base64.b64decode(embedded), alone.content):
        drawn: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert drawn.shape == PIXELS.shape


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"files": {"file": b"not an image"}}, 422, "send a JPEG or a PNG"),
        ({"files": {"file": png(PIXELS)[:60]}}, 422, "PNG"),
        ({"files": {"other": png(PIXELS)}}, 400, "exactly one of"),
        ({"files": {"file": png(PIXELS)}, "data": {"path": "left/0001.png"}}, 400, "exactly one of"),
        ({"files": [("x", b"")] * 9}, 400, "more than 8 fields"),
        ({"content": b"--b", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400, "boundary"),
        ({"content": b"--b", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "a body of type text/plain: "),
        ({"content": b"x"}, 415, "a body of type none: "),
        ({"json": {"path": 5}}, 400, "path"),
        ({"json": ["path"]}, 400, "object"),
        ({"content": b"[" * 60000, "headers": {"content-type": "application/json"}}, 400, "JSON"),
        (
            {"content": b'{"path": NaN}', "headers": {"content-type": "application/json"}},
            400,
            "path: Input should be a valid string",
        ),
        ({"content": b"x" * 70000, "headers": {"content-type": "application/json"}}, 413, "70000"),
        ({"files": {"file": png(PIXELS)}, "data": {"output": "perhaps"}}, 400, "perhaps"),
        ({"files": {"file": png(PIXELS)}, "params": {"model": "none"}}, 404, "tiny"),
        ({"files": {"file": png(PIXELS)}, "params": {"version": "9"}}, 404, "9"),
        ({"files": {"file": png(PIXELS)}, "params": {"output": "perhaps"}}, 422, "output"),
    ],
)
def test_an_invalid_request_is_an_error(
    worker: GatewayWorker, request_: dict[str, Any], status: int, message: str
) -> None:
    """The message says what was sent and what is expected; all errors have the same form."""
    response = detect(worker, **request_)
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert message in response.json()["error"]


class _Detector(Engine):
    def infer(self, batch: Any) -> Outputs:
        """Returns one box over the left half of each image."""
        boxes = np.tile(np.array([[[0, 0, WIDTH / 2, HEIGHT]]], np.float32), (len(batch), 1, 1))
        return {"boxes": boxes, "scores": np.full((len(batch), 1, 1), 0.9, np.float32)}


@pytest.mark.parametrize("size", [(1, 65_535), (65_535, 1)])
def test_an_image_too_large_for_a_jpeg_cannot_be_annotated(worker: GatewayWorker, size: tuple[int, int]) -> None:
    """The model can still process it. Drawing on it once ended the worker."""
    image = png(np.zeros((*size, 3), np.uint8))
    assert detect(worker, files={"file": image}).status_code == 200
    response = detect(worker, files={"file": image}, params={"output": 1})
    assert (response.status_code, "at most 65500 pixels per side" in response.json()["error"]) == (422, True)


@pytest.mark.parametrize("name", [b'a"; name*0=b; name*=c; x="', b'a"; name*1=x; name*=y; x="'])
def test_an_inconsistent_field_name_is_an_error(worker: GatewayWorker, name: bytes) -> None:
    """Parsing such a name in RFC 2231 pieces raised an unexpected exception, which once ended the worker."""
    body = b'--b\r\nContent-Disposition: form-data; name="' + name + b'"\r\n\r\nx\r\n--b--\r\n'
    response = detect(worker, content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert (response.status_code, "exactly one of" in response.json()["error"]) == (400, True)


def test_an_image_counts_with_its_decoded_size(folder: Path) -> None:
    """A file of 100 kB can hold thirty million pixels; a few dozen of them at once took three gigabytes."""
    with open_gateway(model(), http="127.0.0.1:0", images=folder, max_message_bytes=1 << 20) as worker:
        assert detect(worker, files={"file": png(np.zeros((600, 600, 3), np.uint8))}).status_code == 200
        response = detect(worker, files={"file": png(np.zeros((700, 700, 3), np.uint8))})
    # Not 429: the caller must not retry.
    assert (response.status_code, "send less" in response.json()["error"]) == (413, True)


def detector() -> Model:
    """A detection model."""
    base = model(engine=_Detector())
    manifest = base.manifest.model_copy(
        update={
            "task": "detection",
            "output": None,
            "outputs": {
                "boxes": OutputSection(tensor="b:0", kind=OutputKind.BOXES),
                "scores": OutputSection(tensor="s:0", kind=OutputKind.PROBABILITIES),
            },
        }
    )
    return Model(manifest, replace(base.card, task="detection"), _Detector())


def test_a_narrow_image_counts_with_its_size_for_drawing() -> None:
    """It is enlarged from 5 to 480 pixels in width: a hundred bytes became thirty million uncounted pixels."""
    narrow = png(np.zeros((200, 5, 3), np.uint8))
    with open_gateway(detector(), http="127.0.0.1:0", max_message_bytes=1 << 20) as worker:
        assert detect(worker, files={"file": narrow}).status_code == 200
        response = detect(worker, files={"file": narrow}, data={"output": "1"})
    assert (response.status_code, "send less" in response.json()["error"]) == (413, True)


def test_boxes_are_in_pixels_of_the_sent_image() -> None:
    """The image is larger than the model's input, whose size the caller does not know."""
    with open_gateway(detector(), http="127.0.0.1:0") as worker:
        body = detect(worker, files={"file": png(np.zeros((HEIGHT * 10, WIDTH * 10, 3), np.uint8))}).json()
    assert body["detections"][0]["box"] == [0, 0, WIDTH * 5, HEIGHT * 10]
