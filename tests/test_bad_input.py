"""What bad input gets: one line that says what was given, what is wrong and what to do; exit code 1; nothing lost."""

import base64
import hashlib
import queue
import resource
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import cv2
import msgpack
import numpy as np
import numpy.typing as npt
import pytest
import yaml

import skylane
from cloud.manifest import BatchingSection, InputSection, Manifest, OutputKind, OutputSection
from cloud.model import Model
from cloud.node import CloudNode, WorkerSettings
from rosbag_tools.writer import BagWriter
from shared import masks
from shared.address import Address
from shared.broker import Broker
from shared.bus import Bus, MemoryBus, Properties
from shared.frames import Layout
from shared.geometry import Resize, plan
from shared.hashing import tree_sha256
from shared.labels import Labels
from shared.latency_log import JOURNAL_NAME, read_rows
from shared.messages import FrameMessage, MaskMessage, Status, pack_frame, unpack_mask
from shared.model_card import ModelCard
from shared.mqtt import MqttBus
from shared.run_manifest import read_manifest, write_manifest
from shared.topics import FRAMES, MASKS, FrameId

HEIGHT, WIDTH = 16, 24
WAIT_S = 30.0
CARD = ModelCard(
    name="tiny",
    version="1",
    sha256="0" * 64,
    task="segmentation",
    height=HEIGHT,
    width=WIDTH,
    layout=Layout.RGB8,
    resize=Resize.CROP,
    labels=Labels(("dark", "light"), ((0, 0, 0), (255, 255, 255))),
    trained=True,
)


class Thresholds:
    """An engine without a library: light pixels are class 1."""

    device = "cpu"
    batch_size = None

    def infer(self, batch: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """See Engine."""
        return (batch[..., 0] > 127).astype(np.uint8)

    def close(self) -> None:
        """See Engine."""


def _model() -> Model:
    manifest = Manifest(
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        output=OutputSection(tensor="prediction:0", kind=OutputKind.CLASS_IDS),
        labels_file="none",
        batching=BatchingSection(),
    )
    return Model(manifest, CARD, Thresholds())


@contextmanager
def _worker(bus: Bus) -> Iterator[CloudNode]:
    if isinstance(bus, MemoryBus):
        bus.shares_subscriptions = True  # The only worker need not wait to see whether it is alone.
    name = f"worker-{uuid4().hex[:6]}"
    node = CloudNode([_model()], WorkerSettings(worker=name, session="s1", group=f"group-{name}"))
    ready = threading.Event()
    thread = threading.Thread(target=node.serve, args=(bus, lambda: None, ready.set), name=name)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield node
    finally:
        node.stop()
        thread.join(WAIT_S)


def _bus(url: str) -> MqttBus:
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command line installs handlers of its own; the tests' come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end with exit code 1 and one line on the standard error; returns the line."""

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            skylane.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 1, printed
        (line,) = printed.err.splitlines()
        assert line.startswith("skylane: ")
        return line

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a folder of so many pictures of the model's size."""

    def make(count: int) -> Path:
        folder = tmp_path / "pictures"
        folder.mkdir()
        for index in range(count):
            noise = np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
            cv2.imwrite(str(folder / f"{index:03d}.png"), noise)
        return folder

    return make


def _bag(path: Path, count: int = 20, encoding: str = "rgb8") -> Path:
    with BagWriter(path, "mcap", "none") as writer:
        for index in range(count):
            pixels = np.full((10 * HEIGHT, 10 * WIDTH, 3), index, np.uint8)  # Several chunks a bag.
            stamp_ns = 10**18 + index * 10**7
            writer.write_image("/sensors/camera/left/image_raw", pixels, encoding, stamp_ns, stamp_ns, "camera")
    return path


@pytest.mark.parametrize("name", ["gone.bag", "gone.mcap", "gone.mp4", "gone"])
def test_a_source_that_is_missing(fails: Callable[..., str], tmp_path: Path, name: str) -> None:
    """A typing mistake in a path."""
    line = fails("edge", "play", tmp_path / name)
    assert f"{tmp_path / name} does not exist" in line
    assert "give a bag, a video file, a folder of pictures or camera:0" in line


@pytest.mark.parametrize("name", ["text.bag", "text.mcap", "text.db3", "text.mp4"])
@pytest.mark.parametrize("content", [b"", b"this is no recording\n" * 100], ids=["empty", "text"])
def test_a_source_that_is_something_else(fails: Callable[..., str], tmp_path: Path, name: str, content: bytes) -> None:
    """A file with the wrong ending, or a download that failed."""
    (tmp_path / name).write_bytes(content)
    assert name in fails("edge", "play", tmp_path / name)


@pytest.mark.parametrize("name", ["notes.txt", "picture.png"])
def test_a_source_of_no_known_kind(fails: Callable[..., str], tmp_path: Path, name: str) -> None:
    """It names the kinds that there are."""
    (tmp_path / name).write_text("x")
    assert ".mcap" in fails("edge", "play", tmp_path / name)


def test_a_topic_that_is_not_there_offers_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """Topics are long and easily mistyped."""
    line = fails("edge", "play", _bag(tmp_path / "drive"), "--topics", "/sensors/camera/lfet/image_raw")
    assert "/sensors/camera/lfet/image_raw" in line
    assert "did you mean" in line
    assert "/sensors/camera/left/image_raw" in line


def test_a_truncated_bag_is_played_as_far_as_it_goes(
    fails: Callable[..., str], mosquitto_url: str, tmp_path: Path
) -> None:
    """All that can be read is answered and logged, and then the line says what is lost."""
    bag = _bag(tmp_path / "drive", 40)
    (file,) = bag.glob("*.mcap")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    out = tmp_path / "run"
    with _worker(_bus(mosquitto_url)):
        line = fails("edge", "play", bag, *_flags(mosquitto_url, out), "--codec", "raw")
    assert "drive" in line
    rows = list(read_rows(out))
    assert 5 < len(rows) < 40
    assert Counter(row["outcome"] for row in rows) == {"answered": len(rows)}
    assert read_manifest(out)["frames_read"] == len(rows)
    assert len(list((out / "masks").rglob("*.png"))) == len(rows)


def test_an_encoding_that_cannot_be_read_is_named(
    fails: Callable[..., str], mosquitto_url: str, tmp_path: Path
) -> None:
    """Every frame has its row with the reason, and the line repeats it."""
    out = tmp_path / "run"
    with _worker(_bus(mosquitto_url)):
        line = fails("edge", "play", _bag(tmp_path / "drive", 5, "32FC7"), *_flags(mosquitto_url, out))
    assert "none of its 5 frames can be read" in line
    assert "32FC7" in line
    assert Counter(row["outcome"] for row in read_rows(out)) == {"dropped": 5}


def _flags(url: str, out: Path) -> tuple[str, ...]:
    vehicle = f"car-{uuid4().hex[:6]}"
    return ("--broker", url, "--model", "tiny", "--vehicle", vehicle, "--out", str(out), "--closed-loop")


def _repository(root: Path, graph: bytes = b"", **changes: Any) -> Path:
    """A repository with one model, whose file `graph` is."""
    folder = root / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.pb").write_bytes(graph)
    manifest: dict[str, Any] = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input:0", "height": HEIGHT, "width": WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": "road", "colour": [128, 64, 128]}],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest | changes))
    return root


def test_a_graph_without_the_named_tensors(fails: Callable[..., str], tmp_path: Path) -> None:
    """Told before any broker is asked for, with the nearest that there are."""
    from cloud.engines.tensorflow_device import tf  # noqa: PLC0415 (slow, and only here)

    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, HEIGHT, WIDTH, 3), "inputs")
        tf.identity(images[..., 0], "prediction")
    root = _repository(tmp_path / "models", graph.as_graph_def().SerializeToString())
    line = fails("cloud", "serve", "--models", root, "--model", "tiny", "--device", "cpu")
    assert "model.pb" in line
    assert "input:0" in line
    assert "inputs" in line


def test_a_manifest_with_an_unknown_key_offers_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """A key that is silently ignored is a setting that does not work."""
    root = _repository(tmp_path / "models", batchin={"max_size": 4})
    line = fails("cloud", "serve", "--models", root, "--model", "tiny")
    assert "tiny/model.yaml: batchin: unknown key: did you mean batching?" in line


def test_a_model_that_is_not_in_the_repository_offers_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """As a topic."""
    line = fails("cloud", "serve", "--models", _repository(tmp_path / "models"), "--model", "tniy")
    assert "no model 'tniy': did you mean tiny?" in line


def test_a_configuration_with_an_unknown_key(fails: Callable[..., str], tmp_path: Path) -> None:
    """The same for the two configuration files."""
    (tmp_path / "edge.yaml").write_text("vehicel: car\n")
    assert "vehicel: unknown key: did you mean vehicle?" in fails(
        "edge", "play", tmp_path, "--config", tmp_path / "edge.yaml"
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--window", "0"),
        ("--deadline-ms", "inf"),
        ("--frames", "-1"),
        ("--quality", "101"),
    ],
)
def test_a_flag_out_of_its_bounds_is_named(fails: Callable[..., str], tmp_path: Path, flag: str, value: str) -> None:
    """And not a traceback of the library that checks it."""
    assert flag.strip("-").replace("-", "_") in fails("edge", "play", tmp_path, flag, value)


def test_no_broker(fails: Callable[..., str], pictures: Callable[[int], Path], tmp_path: Path) -> None:
    """It is tried again, with a message, until the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"mqtt://127.0.0.1:{probe.getsockname()[1]}"
    line = fails("edge", "play", pictures(1), *_flags(url, tmp_path / "run"), "--connect-timeout", "0.4")
    assert f"no broker at {url} after 0.4 s" in line
    assert "start one with 'skylane broker' or give its address with --broker" in line
    assert not (tmp_path / "run").exists()


def test_no_worker_or_none_with_the_model(
    fails: Callable[..., str], mosquitto_broker: Broker, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """The broker is there, the rest is not; then it is, but serves another model."""
    url, source = mosquitto_broker.url, pictures(1)
    flags = ("--broker", url, "--out", tmp_path / "run", "--connect-timeout", "0.4")
    assert "start one with 'skylane cloud serve'" in fails("edge", "play", source, *flags)
    with _worker(_bus(url)):
        line = fails("edge", "play", source, *flags, "--model", "tinny")
    assert "no worker serves model 'tinny': did you mean tiny?" in line


@pytest.mark.mosquitto
def test_a_wrong_password(
    fails: Callable[..., str], pictures: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and without printing it; Mosquitto's own password file says no."""
    salt = b"skylane-salt"
    digest = hashlib.pbkdf2_hmac("sha512", b"right", salt, 101)
    passwords = tmp_path / "passwords"
    passwords.write_text(f"car:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nuser root\nallow_anonymous false\npassword_file {passwords}\n")
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "wrong-secret")
    with Broker.start(config=config):
        flags = _flags(f"mqtt://car@127.0.0.1:{port}", tmp_path / "run")
        line = fails("edge", "play", pictures(1), *flags)
    assert "SKYLANE_BROKER_PASSWORD" in line
    assert "wrong-secret" not in line


@pytest.mark.parametrize("name", ["a/b", "+", "#", "ä", "", "x" * 65])
def test_a_name_with_forbidden_characters(
    fails: Callable[..., str], pictures: Callable[[int], Path], name: str
) -> None:
    """Before anything is connected."""
    source = pictures(1)
    for flag in ("--vehicle", "--model"):
        assert "is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -" in fails("edge", "play", source, flag, name)


def test_a_worker_name_with_forbidden_characters(fails: Callable[..., str], tmp_path: Path) -> None:
    """Before a model is loaded."""
    assert "worker 'a/b' is not allowed" in fails("cloud", "serve", "--worker", "a/b", "--models", tmp_path)


@contextmanager
def _disk_of(size_bytes: int) -> Iterator[None]:
    """Files larger than this cannot be written: a write is cut short, the next one fails, as on a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk(
    fails: Callable[..., str], mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """Inference goes on; the rows that were written stay, the others are counted, and the line says both."""
    out = tmp_path / "run"
    source = pictures(60)
    with _worker(_bus(mosquitto_url)) as node, _disk_of(12_000):
        line = fails("edge", "play", source, *_flags(mosquitto_url, out), "--no-sinks")
        assert node.counts == {"answered": 60}
    rows = list(read_rows(out))
    assert 0 < len(rows) < 60
    assert f"{60 - len(rows)} rows of {out / 'latency.csv'} were not written" in line
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["rows_lost"]) == ("incomplete", 60 - len(rows))
    assert manifest["frames_read"] == sum(manifest["outcomes"].values()) == 60


def test_a_disk_without_room_for_a_mask(
    fails: Callable[..., str], mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """A sink that fails is left out; the log is still whole."""
    out = tmp_path / "run"
    (out / "masks").mkdir(parents=True)
    (out / "masks" / "pictures").write_text("in the way")
    with _worker(_bus(mosquitto_url)):
        line = fails("edge", "play", pictures(5), *_flags(mosquitto_url, out))
    assert "cannot be written" in line
    assert "choose another --out" in line
    assert Counter(row["outcome"] for row in read_rows(out)) == {"answered": 5}


def test_a_folder_that_holds_a_run_is_not_written_over(
    fails: Callable[..., str], mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """What a killed run left open is closed on the way."""
    out, source = tmp_path / "run", pictures(3)
    with _worker(_bus(mosquitto_url)):
        with pytest.raises(SystemExit) as ended:
            skylane.main(["edge", "play", str(source), *_flags(mosquitto_url, out), "--no-sinks"])
        assert ended.value.code == 0
        before = [row["sequence"] for row in read_rows(out)]
        with (out / JOURNAL_NAME).open("a") as journal:
            journal.write((out / JOURNAL_NAME).read_text().splitlines()[0].replace(",0,aborted", ",9,aborted") + "\n")
        write_manifest(out, read_manifest(out) | {"state": "running"})
        assert "already holds a run: choose another --out" in fails("edge", "play", source, *_flags(mosquitto_url, out))
    assert [row["sequence"] for row in read_rows(out)] == [*before, "9"]


def test_a_report_of_what_is_no_run(fails: Callable[..., str], tmp_path: Path) -> None:
    """One line."""
    assert "latency.csv cannot be read" in fails("report", tmp_path)
    assert "give the folder of a run" in fails("report", tmp_path, "--repair")


class Sender:
    """A vehicle that publishes whatever it likes, and reads what comes back."""

    def __init__(self, bus: Bus, vehicle: str = "car") -> None:
        self._bus = bus
        self._topic = FRAMES.of(model="tiny", vehicle=vehicle, camera="left")
        self._answers: queue.SimpleQueue[MaskMessage] = queue.SimpleQueue()
        self.frame = FrameMessage(
            id=FrameId(vehicle, "left", "s1", 1),
            model="tiny",
            layout=Layout.RGB8,
            shape=(HEIGHT, WIDTH, 3),
            codec="raw",
            geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
            frame_stamp_ns=0,
            data=bytes(HEIGHT * WIDTH * 3),
        )
        bus.subscribe(
            MASKS.filter(vehicle=vehicle), 1, lambda delivery: self._answers.put(unpack_mask(delivery.payload))
        )

    def send(
        self, payload: bytes, *, correlation: bytes | None = b"car/left/s1/1", response: str | None = None
    ) -> None:
        """Publish a payload on the frames topic."""
        properties = Properties(correlation=correlation, response_topic=response)
        self._bus.publish(self._topic, payload, qos=1, properties=properties)

    def answer(self) -> MaskMessage:
        """The next answer."""
        return self._answers.get(timeout=WAIT_S)

    def is_served(self) -> bool:
        """Whether a proper frame is answered, and next."""
        frame = replace(self.frame, id=replace(self.frame.id, sequence=999))
        self.send(pack_frame(frame), correlation=str(frame.id).encode())
        answer = self.answer()
        assert answer.shape is not None
        mask = masks.decode(answer.data, answer.codec, answer.shape)
        return answer.id == frame.id and answer.status is Status.ANSWERED and mask.shape == (HEIGHT, WIDTH)


def _changed(frame: FrameMessage, **changes: object) -> bytes:
    packed: bytes = msgpack.packb(msgpack.unpackb(pack_frame(frame)) | changes)
    return packed


MALFORMED: dict[str, tuple[Callable[[FrameMessage], bytes], str]] = {
    "garbage": (lambda _: b"\x00garbage", "map"),
    "nothing": (lambda _: b"", "MessagePack"),
    "half": (lambda frame: pack_frame(frame)[:200], "MessagePack"),
    "another version": (lambda frame: _changed(frame, v=9), "version 9 is not spoken here: speak 1"),
    "an id that is a number": (lambda frame: _changed(frame, id=7), "'id'"),
    "another vehicle's id": (lambda frame: _changed(frame, id="bus/left/s1/1"), "must be those of its topic"),
    "another camera's id": (lambda frame: _changed(frame, id="car/right/s1/1"), "must be those of its topic"),
    "another model": (lambda frame: _changed(frame, model="huge"), "must be those of its topic"),
    "too few pixels": (lambda frame: _changed(frame, data=b"\x00"), "bytes"),
    "another size": (
        lambda frame: _changed(frame, shape=[8, 8, 3], data=bytes(192)), "model tiny takes 16×24×3",
    ),
    "a huge size": (lambda frame: _changed(frame, shape=[16384, 16384, 3]), "model tiny takes"),
    "no codec": (lambda frame: _changed(frame, codec="pickle"), "pickle"),
    "no mask codec": (lambda frame: _changed(frame, want={"mask_codec": "jpeg", "size": "model"}), "no mask codec"),
    "a jpeg that is none": (lambda frame: _changed(frame, codec="jpeg"), "send a JPEG or a PNG"),
    "a zstd that is none": (lambda frame: _changed(frame, codec="zstd"), "zstd"),
    "a foreign geometry": (
        lambda frame: _changed(frame, geometry=plan(Resize.CROP, 64, 64, 32, 32).to_wire()), "geometry ends at",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_message_is_rejected_and_the_next_frame_served(kind: str) -> None:
    """Anybody may publish anything: the sender is told why, and nobody else feels it."""
    make, reason = MALFORMED[kind]
    with MemoryBus() as bus, _worker(bus):
        sender = Sender(bus)
        sender.send(make(sender.frame))
        answer = sender.answer()
        assert (answer.status, str(answer.id)) == (Status.REJECTED, "car/left/s1/1")
        assert reason in answer.reason
        assert sender.is_served()


def test_malformed_messages_are_rejected_over_a_real_broker(mosquitto_url: str) -> None:
    """The correlation data, which alone tells whose a broken message is, comes through Mosquitto."""
    with _bus(mosquitto_url) as bus, _worker(_bus(mosquitto_url)):
        vehicle = f"car-{uuid4().hex[:6]}"
        sender = Sender(bus, vehicle)
        sender.send(b"\xc1", correlation=f"{vehicle}/left/s1/5".encode())
        answer = sender.answer()
        assert (answer.status, answer.id.sequence) == (Status.REJECTED, 5)
        assert sender.is_served()


@pytest.mark.parametrize("correlation", [None, b"", b"\xff", b"bus/left/s1/1", b"car/right/s1/1", b"x" * 5000])
def test_what_tells_nobody_whose_it_is_is_counted(correlation: bytes | None) -> None:
    """Answering under a foreign id would put a refusal into another vehicle's log."""
    with MemoryBus() as bus, _worker(bus) as node:
        sender = Sender(bus)
        sender.send(b"\xc1", correlation=correlation)
        assert sender.is_served()
        assert node.counts == {"unreadable": 1, "answered": 1}


def test_a_foreign_response_topic_is_refused() -> None:
    """Or a vehicle could have a worker write wherever the worker may."""
    with MemoryBus() as bus, _worker(bus):
        sender = Sender(bus)
        stolen: list[object] = []
        bus.subscribe("skylane/v1/masks/bus/left", 1, stolen.append)
        sender.send(pack_frame(sender.frame), response="skylane/v1/masks/bus/left")
        answer = sender.answer()
        assert answer.status is Status.REJECTED
        assert answer.reason == "the response topic must be skylane/v1/masks/car/left"
        assert sender.is_served()
        assert not stolen


def test_a_mask_that_the_way_back_does_not_take_is_refused() -> None:
    """A packet over the broker's limit would cut the worker off, and again at every reconnect."""
    with MemoryBus() as bus:
        bus.largest_payload = 70_000
        with _worker(bus):
            sender = Sender(bus)
            large = plan(Resize.CROP, 300, 400, HEIGHT, WIDTH).to_wire()
            sender.send(_changed(sender.frame, geometry=large, want={"mask_codec": "raw", "size": "frame"}))
            answer = sender.answer()
            assert answer.status is Status.REJECTED
            assert "ask for another mask codec or size" in answer.reason
            assert sender.is_served()
