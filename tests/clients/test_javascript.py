"""The page clients/javascript in a real browser, with a worker and a real Mosquitto that accepts websockets."""

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from ops.broker.mosquitto import find_mosquitto
from shared.imaging import geometry
from shared.imaging.opencv import cv2
from shared.inference.model import Model
from shared.network.endpoint import free_ports
from shared.stages import CLOUD_STAGES
from tests.clients.conftest import CLIENTS, SampleImage, need, run
from tests.pipeline.rig import connect, worker
from tests.support.browser import browser
from tests.support.npm import npm_packages

__all__ = ["browser"]

pytestmark = pytest.mark.mosquitto
# Runs the client in Node.js with a broker that acknowledges no subscription or no frame; a PNG header suffices as image.
SILENT_BROKER = """
const [folder, mute] = process.argv.slice(1);
const load = (name) => require(`${folder}/node_modules/${name}`);
[globalThis.mqtt, globalThis.MessagePack] = [load("mqtt"), load("@msgpack/msgpack")];
const card = { name: "tiny", task: "segmentation", resize: "crop", height: 64, width: 96 };
const status = Buffer.from(MessagePack.encode({ v: 1, state: "online", cards: [card] }));
const topic = Buffer.from("skylane/v1/status/worker/w");
const told = Buffer.concat([Buffer.from([0x30, 3 + topic.length + status.length, 0, topic.length]), topic, Buffer.from([0]), status]);
const kinds = { 1: () => [0x20, 3, 0, 0, 0], 8: (packet) => mute === "frame" && [0x90, 5, packet[2], packet[3], 0, 1, 1] };
const server = require("net").createServer((socket) => {
  socket.on("error", () => {}).on("data", (packet) => {
    const answer = kinds[packet[0] >> 4]?.(packet);
    if (answer) socket.write(Buffer.concat([Buffer.from(answer), answer[0] === 0x90 ? told : Buffer.from([])]));
  });
});
server.listen(0, "127.0.0.1", async () => {
  const { connect } = eval(require("fs").readFileSync(`${folder}/skylane.js`, "utf8") + "; Skylane");
  const png = Buffer.from("89504e470d0a1a0a0000000d4948445200000060000000400802000000", "hex");
  let client;
  try {
    client = await connect(`mqtt://127.0.0.1:${server.address().port}`, { timeoutMs: 700 });
    await client.send(new Blob([png]), { model: "tiny" });
  } catch (error) {
    await client?.close();
    console.log(error.message);
    process.exit();
  }
});
"""


@pytest.fixture(scope="session")
def page_file() -> Path:
    """The page with its libraries."""
    folder = npm_packages(CLIENTS / "javascript", "javascript")
    for name in ("index.html", "skylane.js"):
        shutil.copy(CLIENTS / "javascript" / name, folder)
    return folder / "index.html"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The two addresses of a Mosquitto: mqtt:// for the worker, ws:// for the page."""
    ports = free_ports(2)
    config = tmp_path_factory.mktemp("websockets") / "mosquitto.conf"
    listeners = f"listener {ports[0]} 127.0.0.1\nlistener {ports[1]} 127.0.0.1\nprotocol websockets\n"
    config.write_text(f"{listeners}allow_anonymous true\nmax_packet_size 67174400\n")
    program = find_mosquitto()
    assert program is not None
    with subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            connect(f"mqtt://127.0.0.1:{ports[0]}").close()  # Waits until the broker accepts connections.
            yield f"mqtt://127.0.0.1:{ports[0]}", f"ws://127.0.0.1:{ports[1]}"
        finally:
            process.terminate()


@pytest.fixture
def page(browser: Browser, page_file: Path, brokers: tuple[str, str]) -> Iterator[Page]:
    """The page, configured for the broker and the tiny model; an exception in the page fails the test."""
    errors: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_file.as_uri())
        page.locator("[name=broker]").fill(brokers[1])
        page.locator("[name=model]").fill("tiny")
        yield page
    assert not errors


def send(page: Page, path: Path) -> str:
    """Selects and sends an image; returns the status that the page shows."""
    page.locator("[name=picture]").set_input_files(path)
    page.get_by_role("button", name="Send").click()
    status = page.get_by_role("status")
    status.filter(has_text=":").wait_for(timeout=60_000)
    return str(status.inner_text())


@pytest.mark.parametrize("shape", [(64, 96, ".png"), (101, 333, ".jpg"), (301, 97, ".jpg")])
def test_the_mask_is_that_of_the_direct_call(
    page: Page,
    brokers: tuple[str, str],
    make_image: Callable[..., SampleImage],
    model: Model,
    shape: tuple[int, int, str],
) -> None:
    """The page plans the resize, and the mask may have the size of the model or of the image."""
    image = make_image(*shape)
    plan = geometry.plan(model.card.resize, *shape[:2], model.card.height, model.card.width)
    masks = {"model": image.mask, "frame": geometry.to_source(image.mask, plan, geometry.UNSEEN)}
    with worker(brokers[0], model):
        for size, mask in masks.items():
            page.locator("[name=size]").select_option(size)
            assert send(page, image.path).startswith(f"mask of {mask.shape[0]} × {mask.shape[1]} by ")
            ids = base64.b64decode(
                page.evaluate("btoa(Array.from(lastMask, (id) => String.fromCharCode(id)).join(''))")
            )
            assert np.array_equal(np.frombuffer(ids, np.uint8).reshape(mask.shape), mask)
    durations = dict(row.inner_text().split("\t") for row in page.get_by_role("row").all())
    assert list(durations) == ["sent", *CLOUD_STAGES[1:], "cloud", "crossing", "total"]
    assert page.locator("canvas").bounding_box()


def test_errors_are_shown(page: Page, brokers: tuple[str, str], model: Model, tmp_path: Path) -> None:
    """The page shows the messages of the worker and its own."""
    grey, text = tmp_path / "grey.png", tmp_path / "text.png"
    cv2.imwrite(str(grey), np.zeros((64, 96), np.uint8))
    text.write_text("not an image: plain text")
    with worker(brokers[0], model):
        assert send(page, grey).startswith("rejected: rgb8 of 64×96×3: png header declares 64×96, 1 × 8 bits")
        assert send(page, text) == "the file is neither a complete JPEG nor a PNG: choose another"
        assert "failed" in (page.get_by_role("status").get_attribute("class") or "")
    page.locator("[name=broker]").fill("ws://127.0.0.1:1")
    assert send(page, grey) == "no broker at ws://127.0.0.1:1: is it running, and does it accept websockets?"


@pytest.mark.parametrize(
    ("mute", "message"),
    [
        ("subscription", "does not acknowledge subscriptions within 700 ms: does it support MQTT 5?"),
        ("frame", "no answer within 700 ms: the frame is lost, send it again"),
    ],
)
def test_a_silent_broker_causes_a_timeout(page_file: Path, mute: str, message: str) -> None:
    """A connection that dies during an upload gives no sign: the page would show "sending …" forever."""
    need("node")
    done = run("node", "-e", SILENT_BROKER, page_file.parent, mute)
    assert done.stdout.strip().endswith(message), done.stderr
