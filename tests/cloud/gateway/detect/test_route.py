"""One picture in, what the model says of it out."""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest

from cloud.engines.engine import Outputs
from cloud.gateway.settings import GatewaySettings
from cloud.models.manifest import OutputKind, OutputSection
from cloud.models.model import Model
from shared.messages.model_card import Task
from tests.support.gateway import WAIT_S, Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, Engine, model

PIXELS = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)


def png(pixels: Any) -> bytes:
    """An encoded picture (BGR, as OpenCV has it)."""
    done, data = cv2.imencode(".png", pixels)
    assert done
    return data.tobytes()


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.png").write_bytes(png(PIXELS))
    folder = tmp_path_factory.mktemp("images")
    (folder / "left").mkdir()
    (folder / "left" / "0001.png").write_bytes(png(PIXELS))
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "away").symlink_to(outside)
    (folder / "text.png").write_text("no picture")
    os.mkfifo(folder / "pipe.png")
    return folder


@pytest.fixture(name="doors", scope="module")
def _doors(folder: Path) -> Iterator[Doors]:
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", images=folder)) as doors:
        yield doors


def detect(doors: Doors, **request: Any) -> httpx.Response:
    """Ask for a detection."""
    return httpx.post(f"http://{doors.http}/api/detect", verify=False, timeout=WAIT_S, trust_env=False, **request)


def test_a_mask_comes_as_shares_and_as_a_picture_of_class_ids(doors: Doors) -> None:
    """Whoever sends a picture by a browser gets what a vehicle gets, exactly."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[: HEIGHT // 2, :, 2] = 1  # Red, the first channel of RGB: the class of the upper half.
    told = detect(doors, files={"file": png(pixels)}).json()
    assert [(share["class_id"], share["share"]) for share in told["shares"]] == [(0, 0.5), (1, 0.5)]
    mask = cv2.imdecode(np.frombuffer(base64.b64decode(told["mask"]), np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(mask, pixels[..., 2])
    assert told["picture"] == {"height": HEIGHT, "width": WIDTH}
    assert {"prepared", "inferred", "total"} <= told["times_ms"].keys()


@pytest.mark.parametrize(
    "request_", [{"json": {"path": "left/0001.png"}}, {"data": {"path": "left/0001.png"}}, {"data": {"path": "left/0001.png"}, "files": {"x": b""}}]
)  # fmt: skip
def test_a_picture_is_read_by_path(doors: Doors, request_: dict[str, Any]) -> None:
    """As the original's callers named them: by JSON, and by a form of either kind."""
    assert detect(doors, **request_).json()["shares"][0]["class_id"] == 7


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
def test_no_path_leads_out_of_the_folder(doors: Doors, path: str, status: int) -> None:
    """Neither upwards nor by a link; and a pipe must not hold the worker up."""
    answer = detect(doors, content=json.dumps({"path": path}), headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert "error" in answer.json()


def test_grey_and_transparent_pictures_are_taken(doors: Doors) -> None:
    """People have all kinds; vehicles' doors refuse what a camera does not send."""
    grey = detect(doors, files={"file": png(PIXELS[..., 0])}).json()
    clear = detect(doors, files={"file": png(np.dstack([PIXELS, PIXELS[..., :1]]))}).json()
    assert grey["shares"] == clear["shares"] == [{"class_id": 7, "name": "class-7", "share": 1.0}]


def test_a_photograph_is_turned_as_its_exif_says(doors: Doors) -> None:
    """A phone held upright writes its pictures lying; boxes must be of what people see."""
    done, data = cv2.imencode(".jpg", PIXELS)
    assert done
    jpeg = data.tobytes()
    orientation = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    turned = jpeg[:2] + b"\xff\xe1" + (len(orientation) + 2).to_bytes(2, "big") + orientation + jpeg[2:]
    answer = detect(doors, content=turned, headers={"content-type": "image/jpeg"})
    assert answer.json()["picture"] == {"height": WIDTH, "width": HEIGHT}


def test_the_annotated_picture_comes_in_the_json_or_alone(doors: Doors) -> None:
    """`output=1` as the original had it; by Accept a browser or a script gets the picture itself."""
    inside = detect(doors, files={"file": png(PIXELS)}, data={"output": "1"}).json()["annotated"]
    alone = detect(doors, files={"file": png(PIXELS)}, headers={"accept": "image/png"})
    assert alone.headers["content-type"] == "image/png"
    for data in (base64.b64decode(inside), alone.content):
        drawn: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert drawn.shape == PIXELS.shape


@pytest.mark.parametrize(
    ("request_", "status", "word"),
    [
        ({"files": {"file": b"no picture"}}, 422, "send a JPEG or a PNG"),
        ({"files": {"file": png(PIXELS)[:60]}}, 422, "PNG"),
        ({"files": {"other": png(PIXELS)}}, 400, "one of file"),
        ({"files": {"file": png(PIXELS)}, "data": {"path": "left/0001.png"}}, 400, "one of file"),
        ({"files": [("x", b"")] * 9}, 400, "more than 8 fields"),
        ({"content": b"--b", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400, "boundary"),
        ({"content": b"--b", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "text/plain"),
        ({"json": {"path": 5}}, 400, "path"),
        ({"json": ["path"]}, 400, "object"),
        ({"content": b"[" * 60000, "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"content": b'{"path": NaN}', "headers": {"content-type": "application/json"}}, 400, "no JSON"),
        ({"content": b"x" * 70000, "headers": {"content-type": "application/json"}}, 413, "70000"),
        ({"files": {"file": png(PIXELS)}, "data": {"output": "perhaps"}}, 400, "perhaps"),
        ({"files": {"file": png(PIXELS)}, "params": {"model": "none"}}, 404, "tiny"),
        ({"files": {"file": png(PIXELS)}, "params": {"version": "9"}}, 404, "9"),
        ({"files": {"file": png(PIXELS)}, "params": {"output": "perhaps"}}, 422, "output"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_else_breaks(
    doors: Doors, request_: dict[str, Any], status: int, word: str
) -> None:
    """A caller learns what it gave and what is expected, in one form."""
    answer = detect(doors, **request_)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert word in answer.json()["error"]


class _Detector(Engine):
    def infer(self, batch: Any) -> Outputs:
        """See Engine: one box over the left half."""
        boxes = np.tile(np.array([[[0, 0, WIDTH / 2, HEIGHT]]], np.float32), (len(batch), 1, 1))
        return {"boxes": boxes, "scores": np.full((len(batch), 1, 1), 0.9, np.float32)}


@pytest.mark.parametrize("size", [(1, 65_535), (65_535, 1)])
def test_a_picture_that_no_jpeg_holds_is_not_drawn_on(doors: Doors, size: tuple[int, int]) -> None:
    """It can be looked at by the model all the same; that it could not be drawn on once ended the worker."""
    picture = png(np.zeros((*size, 3), np.uint8))
    assert detect(doors, files={"file": picture}).status_code == 200
    answer = detect(doors, files={"file": picture}, params={"output": 1})
    assert (answer.status_code, "65500 a side" in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize("name", [b'a"; name*0=b; name*=c; x="', b'a"; name*1=x; name*=y; x="'])
def test_a_fields_name_in_pieces_that_do_not_fit_ends_nothing(doors: Doors, name: bytes) -> None:
    """A reader of mail headers has an error of its own for that, which once ended the worker."""
    body = b'--b\r\nContent-Disposition: form-data; name="' + name + b'"\r\n\r\nx\r\n--b--\r\n'
    answer = detect(doors, content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, "with one of file" in answer.json()["error"]) == (400, True)


def test_small_files_of_large_pictures_are_counted_as_what_they_become(folder: Path) -> None:
    """A hundred kilobytes can hold thirty million pixels, and a few dozen of them at once took three gigabytes."""
    settings = GatewaySettings(http="127.0.0.1:0", images=folder, max_message_bytes=1 << 20)
    with open_gateway(model(), gateway=settings) as doors:
        assert detect(doors, files={"file": png(np.zeros((600, 600, 3), np.uint8))}).status_code == 200
        answer = detect(doors, files={"file": png(np.zeros((700, 700, 3), np.uint8))})
    assert (answer.status_code, "send less" in answer.json()["error"]) == (
        413,
        True,
    )  # Not 429: it would never be taken.


def detector() -> Model:
    """A model of boxes."""
    made = model(engine=_Detector())
    manifest = made.manifest.model_copy(
        update={
            "task": Task.DETECTION,
            "output": None,
            "outputs": {
                "boxes": OutputSection(tensor="b:0", kind=OutputKind.BOXES),
                "scores": OutputSection(tensor="s:0", kind=OutputKind.PROBABILITIES),
            },
        }
    )
    return Model(manifest, replace(made.card, task=Task.DETECTION), _Detector())


def test_a_narrow_picture_is_counted_as_wide_as_it_is_drawn() -> None:
    """Of five pixels' width it is drawn on at 480: a hundred bytes became thirty million pixels that nobody counted."""
    settings = GatewaySettings(http="127.0.0.1:0", max_message_bytes=1 << 20)
    narrow = png(np.zeros((200, 5, 3), np.uint8))
    with open_gateway(detector(), gateway=settings) as doors:
        assert detect(doors, files={"file": narrow}).status_code == 200
        answer = detect(doors, files={"file": narrow}, data={"output": "1"})
    assert (answer.status_code, "send less" in answer.json()["error"]) == (413, True)


def test_boxes_lie_on_the_picture_that_was_sent() -> None:
    """The picture is larger than the model's input: its sender knows nothing of that."""
    with open_gateway(detector(), gateway=GatewaySettings(http="127.0.0.1:0")) as doors:
        told = detect(doors, files={"file": png(np.zeros((HEIGHT * 10, WIDTH * 10, 3), np.uint8))}).json()
    assert told["detections"][0]["box"] == [0, 0, WIDTH * 5, HEIGHT * 10]
