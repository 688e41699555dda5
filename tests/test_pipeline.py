"""The whole journey on real parts: pictures and bags, Mosquitto, TensorFlow, the log."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from rich.console import Console

import edge.node
from bench.worker import Worker
from cloud.engines.tensorflow_device import tf
from cloud.intake import worker_will
from cloud.model import Model
from cloud.node import CloudNode, WorkerSettings
from cloud.repository import Repository
from edge import cli
from edge.config import EdgeConfig
from edge.node import EdgeNode, PlaySettings
from edge.pipeline import Preparation
from edge.replay import Pace, Schedule
from edge.sources.source import open_source
from edge.transports.mqtt import MqttTransport
from rosbag_tools.writer import BagWriter
from shared import geometry
from shared.address import Address
from shared.broker import Broker
from shared.bus import Bus, MemoryBus
from shared.demosaic import to_colour
from shared.frames import Layout
from shared.hashing import tree_sha256
from shared.latency_log import LogWriter, Outcome, read_rows
from shared.messages import Want
from shared.mqtt import MqttBus
from shared.repair import repair
from shared.run_manifest import read_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES

HEIGHT, WIDTH, CLASSES = 64, 96, 12
WAIT_S = 60.0
Mask = npt.NDArray[np.uint8]
Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with `tiny`, a frozen graph of the road models' form: uint8 1×64×96×3 to class ids."""
    root = tmp_path_factory.mktemp("models")
    weights = np.random.default_rng(7).normal(size=(5, 5, 3, CLASSES)).astype(np.float32)
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, HEIGHT, WIDTH, 3), "input")
        scores = tf.nn.conv2d(tf.cast(images, tf.float32), weights, 1, "SAME")
        tf.cast(tf.argmax(scores, -1), tf.uint8, name="prediction")
    folder = root / "tiny"
    folder.mkdir()
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    manifest = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input:0", "height": HEIGHT, "width": WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": f"class-{i}", "colour": [20 * i, 0, 255 - 20 * i]} for i in range(CLASSES)],
        "warm_up": {"runs": 1},
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return root


@pytest.fixture(scope="module")
def model(models: Path) -> Iterator[Model]:
    """The tiny model, loaded once; the worker and the direct call take turns."""
    with Repository(models).load("tiny") as loaded:
        yield loaded


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a folder of so many pictures of noise, of the model's size."""

    def make(count: int) -> Path:
        folder = tmp_path / f"pictures-{count}"
        folder.mkdir()
        for index in range(count):
            cv2.imwrite(str(folder / f"{index:04d}.png"), _noise(index, (HEIGHT, WIDTH, 3)))
        return folder

    return make


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command line installs handlers of its own; the tests' come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Each test ends what it started."""
    before = {thread.name for thread in threading.enumerate()}
    yield
    assert {thread.name for thread in threading.enumerate()} <= before


def _noise(seed: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _direct(model: Model, rgb: Any) -> Mask:
    mask: Mask = model.predict(np.ascontiguousarray(rgb)[None])[0]
    return mask


def _bus(url: str, **options: Any) -> MqttBus:
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}", **options)


@contextmanager
def _serving(bus: Callable[[CloudNode], Bus], model: Model, **settings: Any) -> Iterator[CloudNode]:
    """A worker in a thread of its own; a bug in it fails the test."""
    name = f"worker-{uuid4().hex[:6]}"
    node = CloudNode([model], WorkerSettings(worker=name, session="s1", group=f"group-{name}", **settings))
    ready = threading.Event()
    raised: list[BaseException] = []

    def serve() -> None:
        try:
            node.serve(bus(node), lambda: None, ready.set)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            raised.append(error)
            ready.set()

    thread = threading.Thread(target=serve, name=name)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield node
    finally:
        node.stop()
        thread.join(WAIT_S)
    assert not raised, raised


@contextmanager
def _memory_bus() -> Iterator[MemoryBus]:
    with MemoryBus() as bus:
        bus.shares_subscriptions = True  # The only worker need not wait to see whether it is alone.
        yield bus


@contextmanager
def _worker(url: str, model: Model, **settings: Any) -> Iterator[CloudNode]:
    def bus(node: CloudNode) -> Bus:
        return _bus(url, will=worker_will("w", "s1"), on_connected=node.announce, on_fault=node.fault)

    with _serving(bus, model, **settings) as node:
        yield node


class Vehicle:
    """A vehicle node and its log, on any bus."""

    def __init__(self, bus: Bus, source: Path, out: Path, *, pace: Pace = Pace.CLOSED_LOOP, **settings: Any) -> None:
        self.out = out
        self._transport = MqttTransport(bus, vehicle=out.name, session="s1", model="tiny")
        card = self._transport.wait_for_card(WAIT_S)
        play = {key: settings.pop(key) for key in ("window", "deadline_ms", "answer_timeout_s") if key in settings}
        topics, sinks = settings.pop("topics", ()), settings.pop("sinks", [])
        self._source = open_source(str(source), topics=topics)
        self._log = LogWriter(out)
        self._node = EdgeNode(
            self._source,
            self._transport,
            self._log,
            sinks,
            PlaySettings(
                vehicle=out.name,
                session="s1",
                schedule=Schedule(pace=pace, **settings),
                preparation=Preparation(card, codec="raw", want=Want("zstd")),
                **play,
            ),
        )
        self.stop = self._node.stop
        self.tally = self._node.tally
        self.reconnected = self._transport.reconnected

    def play(self, on_tick: Callable[[], None] = lambda: None) -> Rows:
        """Play to the end, leave, and read the log."""
        try:
            self._node.run(on_tick)
        finally:
            self._transport.close()
            self._log.__exit__()
            self._source.close()
        assert not self._node.faults
        rows = list(read_rows(self.out))
        _check(rows)
        assert len(rows) == self.tally().read
        return rows

    def answered(self) -> int:
        """How many frames were answered so far."""
        return self.tally().outcomes.get(Outcome.ANSWERED, 0)


def _check(rows: Sequence[Mapping[str, str]]) -> None:
    """What must hold for every log: no frame twice, every sum exact, no node's time running backwards."""
    assert len({(row["vehicle"], row["session"], row["sequence"]) for row in rows}) == len(rows)
    for row in rows:
        for stages in (EDGE_STAGES, CLOUD_STAGES):
            times = [int(row[f"t_{stage}_ns"]) for stage in stages if row[f"t_{stage}_ns"]]
            assert all(earlier <= later for earlier, later in pairwise(times))
        if row["outcome"] != Outcome.ANSWERED:
            continue
        ms = {key: Decimal(value) for key, value in row.items() if key.endswith("_ms")}
        assert sum(ms[f"{stage}_ms"] for stage in EDGE_STAGES[1:]) == ms["total_ms"]
        assert sum(ms[f"{stage}_ms"] for stage in CLOUD_STAGES[1:]) == ms["cloud_ms"]
        assert ms["returned_ms"] == ms["cloud_ms"] + ms["crossing_ms"]
        assert ms["uplink_ms"] + ms["downlink_ms"] == ms["crossing_ms"]
        assert ms["crossing_ms"] > 0
        assert min(ms["uplink_ms"], ms["downlink_ms"]) >= -ms["clock_error_ms"]
        assert int(row["bytes_up"]) > 0 < int(row["bytes_down"])
        assert (row["attempts"], row["batch_size"]) == ("1", "1")


def _outcomes(rows: Rows) -> Counter[tuple[str, str]]:
    return Counter((row["outcome"], row["reason"]) for row in rows)


def _play(source: Path, url: str, out: Path, **settings: Any) -> tuple[int, str]:
    """`skylane edge play`: its exit code and what it printed."""
    printed = StringIO()
    config = EdgeConfig(broker=url, vehicle=out.name, model="tiny", out=out, **settings)
    return cli.run(str(source), config, Console(file=printed, width=160)), printed.getvalue()


def test_three_hundred_frames_are_answered_with_the_models_own_masks(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """The promise of the whole: a row a frame, every mask the direct call's in every pixel, every nanosecond told."""
    out = tmp_path / "car-300"
    with _worker(mosquitto_url, model) as node:
        code, printed = _play(pictures(300), mosquitto_url, out, closed_loop=True, codec="raw")
        assert node.counts == {"answered": 300}
    assert code == 0, printed
    rows = list(read_rows(out))
    _check(rows)
    assert _outcomes(rows) == {("answered", ""): 300}
    assert [int(row["frame_index"]) for row in sorted(rows, key=lambda row: int(row["sequence"]))] == list(range(300))
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["frames_read"], manifest["rows_lost"]) == ("complete", 300, 0)
    assert manifest["outcomes"] == dict.fromkeys(Outcome, 0) | {"answered": 300}
    assert manifest["model"]["sha256"] == model.card.sha256
    assert not manifest["ignored_answers"]
    masks = sorted((out / "masks").rglob("*.png"))
    assert len(masks) == 300
    seen: set[int] = set()
    for index, path in enumerate(masks):
        mask: Any = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(mask, _direct(model, _noise(index, (HEIGHT, WIDTH, 3))[..., ::-1]))
        seen |= set(np.unique(mask))
    assert len(seen) > 2
    assert "300 answered frames" in printed
    assert "300 frames read" in printed
    assert "inferred" in printed


def test_a_bayer_bag_of_two_cameras_is_played_camera_by_camera(
    mosquitto_url: str, model: Model, tmp_path: Path
) -> None:
    """A camera's frames must not become another's, nor be lost to it; binned and cropped they are what the model saw."""
    bag, out = tmp_path / "drive.bag", tmp_path / "car-bag"
    left, right = "/sensors/camera/left/image_raw", "/sensors/camera/right/image_raw"
    with BagWriter(bag) as writer:
        for index in range(10):
            for camera, topic in enumerate((left, right)):
                stamp_ns = 10**18 + index * 10**8 + camera
                pixels = _noise(index + 100 * camera, (2 * HEIGHT, 2 * WIDTH))
                writer.write_image(topic, pixels, "bayer_rggb8", stamp_ns, stamp_ns, "camera")
    with _worker(mosquitto_url, model):
        code, printed = _play(bag, mosquitto_url, out, closed_loop=True, codec="zstd", window=2)
        alone = tmp_path / "car-left"
        assert _play(bag, mosquitto_url, alone, closed_loop=True, topics=(left,), sinks=())[0] == 0
    assert code == 0, printed
    rows = list(read_rows(out))
    _check(rows)
    assert Counter(row["camera"] for row in rows) == {left: 10, right: 10}
    assert Counter(row["camera"] for row in read_rows(alone)) == {left: 10}
    assert sorted(read_manifest(out)["source"]["cameras"]) == [left, right]
    for row in rows:
        index = (int(row["frame_stamp_ns"]) - 10**18) // 10**8
        pixels = _noise(index + 100 * (row["camera"] == right), (2 * HEIGHT, 2 * WIDTH))
        rgb = to_colour(pixels, Layout.BAYER_RGGB8, Layout.RGB8, "binning")
        assert rgb.shape == (HEIGHT, WIDTH, 3)
        path = out / "masks" / row["camera"].strip("/").replace("/", "_") / f"{int(row['frame_index']):06d}.png"
        mask: Any = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(mask, _direct(model, rgb))


def test_masks_of_the_frames_size_lie_on_the_frame(model: Model, tmp_path: Path, mosquitto_url: str) -> None:
    """A cropped and shrunk frame gets its mask back where it was seen, and 255 where it was not."""
    folder, out = tmp_path / "wide", tmp_path / "car-wide"
    folder.mkdir()
    bgr = _noise(3, (2 * HEIGHT, 3 * WIDTH, 3))
    cv2.imwrite(str(folder / "0.png"), bgr)
    with _worker(mosquitto_url, model):
        assert _play(folder, mosquitto_url, out, closed_loop=True, codec="raw", mask_size="frame")[0] == 0
    mask: Any = cv2.imread(str(out / "masks" / "wide" / "000000.png"), cv2.IMREAD_UNCHANGED)
    plan = geometry.plan(model.card.resize, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
    seen = _direct(model, geometry.apply(np.ascontiguousarray(bgr[..., ::-1]), plan))
    np.testing.assert_array_equal(mask, geometry.lay_back(seen, plan, 255))
    assert (mask == 255).any()


def test_the_sinks_make_what_a_person_can_look_at(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """A video a browser plays and a bag a viewer opens, one frame a mask."""
    out = tmp_path / "car-sinks"
    with _worker(mosquitto_url, model):
        code, printed = _play(pictures(20), mosquitto_url, out, closed_loop=True, sinks=("png", "video", "bag"))
    assert code == 0, printed
    video = open_source(str(out / "overlay_pictures-20.mp4"))
    frames = list(video.frames())
    assert len(frames) == 20
    assert frames[0].pixels.shape == (HEIGHT, 2 * WIDTH, 3)  # type: ignore[union-attr]
    bag = open_source(str(out / "masks_bag"), topics=("/pictures-20/masks",))
    try:
        masks = list(bag.frames())
    finally:
        bag.close()
    assert len(masks) == 20
    for index, frame in enumerate(masks):
        path = out / "masks" / "pictures-20" / f"{index:06d}.png"
        np.testing.assert_array_equal(frame.pixels, cv2.imread(str(path), cv2.IMREAD_UNCHANGED))  # type: ignore[union-attr]


class SlowSink:
    """A sink that takes its time, but not for ever."""

    in_order = True

    def __init__(self) -> None:
        self.count = 0
        self.is_closed = False

    def write(self, _: object) -> None:
        """See Sink."""
        threading.Event().wait(0.01)
        self.count += 1

    def close(self) -> None:
        """See Sink."""
        self.is_closed = True


def test_slow_sinks_are_waited_for_while_they_get_on(
    model: Model, pictures: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the video is ready long after the last answer, and without its end it cannot be played."""
    monkeypatch.setattr(edge.node, "_JOIN_S", 0.1)
    sink = SlowSink()
    with _memory_bus() as bus, _serving(lambda _: bus, model):
        Vehicle(bus, pictures(60), tmp_path / "car", sinks=[sink]).play()
    assert sink.count == 60
    assert sink.is_closed


def test_the_newest_frame_wins_where_the_worker_is_slow(
    model: Model, pictures: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open loop: what the window cannot take is dropped with its reason, and it is never the newest that is."""
    count = 40
    predict, gate = model.predict, threading.Event()

    def slowly(images: Any) -> Any:
        assert gate.wait(WAIT_S)
        return predict(images)

    monkeypatch.setattr(model, "predict", slowly)
    with _memory_bus() as bus, _serving(lambda _: bus, model):
        vehicle = Vehicle(bus, pictures(count), tmp_path / "car", pace=Pace.OPEN_LOOP, rate=1e6, window=1)
        rows = vehicle.play(lambda: gate.set() if vehicle.tally().read == count else None)
    assert len(rows) == count
    answered = [int(row["sequence"]) for row in rows if row["outcome"] == "answered"]
    assert count - 1 in answered
    assert len(answered) <= 2
    assert set(_outcomes(rows)) == {("answered", ""), ("dropped", "window")}


def test_open_loop_keeps_the_sources_pace(model: Model, pictures: Callable[[int], Path], tmp_path: Path) -> None:
    """A frame is due by the schedule, not when the pipeline found time for it: latency counts from there."""
    with _memory_bus() as bus, _serving(lambda _: bus, model):
        rows = Vehicle(bus, pictures(10), tmp_path / "car", pace=Pace.OPEN_LOOP, rate=20.0, window=8).play()
    due = [int(row["t_due_ns"]) for row in sorted(rows, key=lambda row: int(row["sequence"]))]
    assert [later - earlier for earlier, later in pairwise(due)] == [5_000_000] * 9


def test_a_loop_goes_on_counting(model: Model, pictures: Callable[[int], Path], tmp_path: Path) -> None:
    """Round two must not overwrite the masks of round one, nor turn time back."""
    with _memory_bus() as bus, _serving(lambda _: bus, model):
        rows = Vehicle(bus, pictures(10), tmp_path / "car", loop=True, frames=25).play()
    rows.sort(key=lambda row: int(row["sequence"]))
    assert _outcomes(rows) == {("answered", ""): 25}
    assert [int(row["frame_index"]) for row in rows] == list(range(25))
    assert all(int(a["source_ns"]) < int(b["source_ns"]) for a, b in pairwise(rows))


def test_a_part_of_a_source_can_be_played(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """As `ros2 bag play` does."""
    out = tmp_path / "car-part"
    with _worker(mosquitto_url, model):
        code, printed = _play(
            pictures(20), mosquitto_url, out, closed_loop=True, start_offset_s=0.5, playback_duration_s=1.0, sinks=()
        )
    assert code == 0, printed
    assert read_manifest(out)["outcomes"]["answered"] == 10
    assert not (out / "masks").exists()


def test_two_vehicles_share_a_worker_and_each_gets_its_own(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """A mask that reaches another vehicle is the worst that can happen."""
    source = pictures(60)
    with _worker(mosquitto_url, model) as node:
        first = Vehicle(_bus(mosquitto_url), source, tmp_path / "car-a")
        second = Vehicle(_bus(mosquitto_url), source, tmp_path / "car-b")
        found: dict[str, Rows] = {}
        threads = [
            threading.Thread(target=lambda v=vehicle: found.setdefault(v.out.name, v.play()))
            for vehicle in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert node.counts == {"answered": 120}
    for vehicle in (first, second):
        rows = found[vehicle.out.name]
        assert _outcomes(rows) == {("answered", ""): 60}
        assert not vehicle.tally().ignored_answers


def test_frames_past_their_deadline_are_expired_on_either_side(
    model: Model, pictures: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask of the past is of no use: the worker does not infer it, and the edge does not take it."""
    predict, gate = model.predict, threading.Event()

    def slowly(images: Any) -> Any:
        assert gate.wait(WAIT_S)
        return predict(images)

    monkeypatch.setattr(model, "predict", slowly)
    with _memory_bus() as bus, _serving(lambda _: bus, model) as node:
        vehicle = Vehicle(bus, pictures(3), tmp_path / "car", window=3, deadline_ms=300.0, answer_timeout_s=1.0)
        rows = vehicle.play(lambda: gate.set() if vehicle.tally().outcomes.get(Outcome.LOST) else None)
        gate.set()
    assert {row["outcome"] for row in rows} <= {"expired", "lost", "dropped"}
    assert {reason for outcome, reason in _outcomes(rows) if outcome == "lost"} <= {"no answer"}
    assert node.counts.get("expired", 0) >= 1


def test_an_overloaded_worker_says_so(
    model: Model, pictures: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue costs an answer, and the vehicle logs the worker's own word."""
    predict, gate = model.predict, threading.Event()

    def slowly(images: Any) -> Any:
        assert gate.wait(WAIT_S)
        return predict(images)

    monkeypatch.setattr(model, "predict", slowly)
    with _memory_bus() as bus, _serving(lambda _: bus, model, max_frames=2):
        vehicle = Vehicle(bus, pictures(20), tmp_path / "car", window=20)
        rows = vehicle.play(lambda: gate.set() if vehicle.tally().outcomes.get(Outcome.OVERLOADED) else None)
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes["overloaded"] > 0
    assert outcomes["answered"] + outcomes["overloaded"] == 20


def test_without_a_worker_every_frame_says_so(model: Model, pictures: Callable[[int], Path], tmp_path: Path) -> None:
    """Never silent: the worker leaves in the middle, and each frame after it is dropped with that reason."""
    with _memory_bus() as bus:
        with _serving(lambda _: bus, model):
            vehicle = Vehicle(bus, pictures(10), tmp_path / "car", pace=Pace.OPEN_LOOP, rate=1e4)
        rows = vehicle.play()
    assert set(_outcomes(rows)) <= {("dropped", "no_worker"), ("dropped", "window")}
    assert ("dropped", "no_worker") in _outcomes(rows)


def test_a_worker_killed_in_the_middle_loses_nothing_silently(
    mosquitto_url: str, models: Path, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """Real processes, SIGKILL: what it held is `lost`, what came after `dropped(no_worker)`, and the sum is right."""
    with Worker(mosquitto_url, models=models, model="tiny", name=f"worker-{uuid4().hex[:6]}") as worker:
        vehicle = Vehicle(_bus(mosquitto_url), pictures(20), tmp_path / "car-kill", loop=True, answer_timeout_s=2.0)
        killed = threading.Event()

        def tick() -> None:
            if vehicle.answered() >= 10 and not killed.is_set():
                os.kill(worker.pid, signal.SIGKILL)
                killed.set()
            if vehicle.tally().outcomes.get(Outcome.DROPPED):
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = _outcomes(rows)
    assert outcomes["answered", ""] >= 10
    assert outcomes["dropped", "no_worker"] > 0
    assert {outcome for outcome, _ in outcomes} <= {"answered", "dropped", "lost"}


def test_a_worker_that_is_asked_to_end_answers_what_it_holds(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """A rolling update must not cost a frame that was sent."""
    with _worker(mosquitto_url, model) as node:
        vehicle = Vehicle(_bus(mosquitto_url), pictures(20), tmp_path / "car-drain", loop=True, answer_timeout_s=5.0)

        def tick() -> None:
            if vehicle.answered() >= 10:
                node.stop()
            if vehicle.tally().outcomes.get(Outcome.DROPPED):
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = _outcomes(rows)
    assert outcomes["answered", ""] >= 10
    assert {outcome for outcome, _ in outcomes} <= {"answered", "dropped"}
    assert {reason for outcome, reason in outcomes if outcome == "dropped"} <= {"no_worker", "stopped"}


def test_the_ledger_balances_over_a_killed_broker(
    mosquitto_broker: Broker, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """The broker forgets all it acknowledged; both ends find it again and every frame has its row."""
    port = mosquitto_broker.listener.port
    before: list[int] = []
    with ExitStack() as stack, _worker(mosquitto_broker.url, model):
        vehicle: Vehicle
        bus = _bus(mosquitto_broker.url, on_connected=lambda: vehicle.reconnected() if before else None)
        vehicle = Vehicle(bus, pictures(20), tmp_path / "car-broker", loop=True, answer_timeout_s=3.0)

        def tick() -> None:
            if vehicle.answered() >= 10 and not before:
                os.kill(mosquitto_broker.pid, signal.SIGKILL)
                mosquitto_broker.stop()
                before.append(vehicle.answered())
                stack.enter_context(Broker.start(port=port, kind="mosquitto"))
            if before and vehicle.answered() >= before[0] + 20:
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes["answered"] >= 30
    assert set(outcomes) <= {"answered", "lost", "dropped"}


def test_a_killed_vehicle_leaves_no_frame_open(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """SIGKILL in the middle of a real run: the next start, or `report --repair`, closes what was open, once."""
    out = tmp_path / "car-killed"
    command = [
        sys.executable, "-m", "skylane", "edge", "play", str(pictures(20)), "--broker", mosquitto_url, "--model",
        "tiny", "--vehicle", out.name, "--out", str(out), "--no-sinks", "--loop", "--rate", "20", "--window", "4",
    ]  # fmt: skip
    held = threading.Event()
    with _worker(mosquitto_url, model) as node:
        predict = model.predict

        def hold(images: Any) -> Any:
            if node.counts.get("answered", 0) >= 10:
                held.set()
                assert go_on.wait(WAIT_S)
            return predict(images)

        go_on = threading.Event()
        model.predict = hold  # type: ignore[method-assign]
        try:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            with process:
                assert held.wait(WAIT_S), process.communicate(timeout=5)
                process.kill()
        finally:
            go_on.set()
            model.predict = predict  # type: ignore[method-assign]
    assert read_manifest(out)["state"] == "running"
    answered = len(list(read_rows(out)))
    shown = _skylane("report", str(out), "--repair")
    assert "frames were open and are closed as aborted" in shown
    assert "0 frames were open" in _skylane("report", str(out), "--repair")
    rows = list(read_rows(out))
    _check(rows)
    aborted = [row for row in rows if row["outcome"] == "aborted"]
    assert aborted
    assert len(rows) == answered + len(aborted)
    assert {row["reason"] for row in aborted} == {"edge_died"}
    assert all(row["t_sent_ns"] for row in aborted)
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["frames_read"]) == ("repaired", len(rows))
    assert manifest["outcomes"]["aborted"] == len(aborted)
    assert repair(out) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_vehicle_that_is_asked_to_end_drains_and_closes_its_log(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C is how most runs end; the manifest must balance all the same."""
    out = tmp_path / f"car-{number.name}"
    asked = threading.Event()

    def predict_and_ask(images: Any) -> Any:
        if node.counts.get("answered", 0) >= 5 and not asked.is_set():
            asked.set()
            os.kill(os.getpid(), number)
        return predict(images)

    predict = model.predict
    with _worker(mosquitto_url, model) as node:
        model.predict = predict_and_ask  # type: ignore[method-assign]
        try:
            code, printed = _play(pictures(20), mosquitto_url, out, loop=True, closed_loop=True, sinks=())
        finally:
            model.predict = predict  # type: ignore[method-assign]
    assert code == 0, printed
    rows = list(read_rows(out))
    _check(rows)
    manifest = read_manifest(out)
    assert manifest["state"] == "complete"
    assert manifest["frames_read"] == len(rows) == sum(manifest["outcomes"].values())
    assert manifest["outcomes"]["answered"] >= 5
    assert set(Counter(row["outcome"] for row in rows)) <= {"answered", "dropped"}


def test_all_of_it_works_over_the_embedded_broker(
    embedded_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """`make demo` must work where nothing can be installed; MQTT 3.1.1 has no properties, so the payload says all."""
    out = tmp_path / "car-embedded"
    with _worker(embedded_url, model) as node:
        code, printed = _play(pictures(30), embedded_url, out, closed_loop=True, codec="jpeg", sinks=())
        assert node.counts == {"answered": 30}
    assert code == 0, printed
    rows = list(read_rows(out))
    _check(rows)
    assert _outcomes(rows) == {("answered", ""): 30}


def test_a_second_worker_on_the_embedded_broker_is_refused_with_the_reason(embedded_url: str, model: Model) -> None:
    """Without shared subscriptions both would answer every frame."""
    with _worker(embedded_url, model):
        bus = _bus(embedded_url)
        second = CloudNode([model], WorkerSettings(worker="second", session="s2"))
        with pytest.raises(Exception, match=r"speaks MQTT 3.1.1, which cannot share frames.*use Mosquitto"):
            second.serve(bus, lambda: None)


def _skylane(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "skylane", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
