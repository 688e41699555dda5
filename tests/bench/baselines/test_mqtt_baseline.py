from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import pytest

from bench.baselines.catalogue import MqttBaseline
from bench.baselines.child import file_of
from bench.baselines.mqtt import plain_client
from bench.baselines.mqtt.cloud_node import CallbackNode
from bench.baselines.mqtt.images import fitted
from bench.baselines.mqtt.palette import kept
from bench.baselines.mqtt.vehicle import Publisher
from bench.harness.environment import free_port
from bench.load.playback import BenchError, Plan
from cloud.models.repository import Repository
from shared.broker.broker import Broker


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a Mosquitto with all its defaults."""
    found = free_port()
    with Broker.start(config=plain_client.broker_config(tmp_path, found)):
        yield found


@pytest.mark.mosquitto
def test_a_frame_comes_back_as_a_painted_mask(port: int, models: Path, bag: Path, tmp_path: Path) -> None:
    """The baseline must really do the work that it is timed for: decode, cut, infer, paint, and send back."""
    node = CallbackNode(models, "tiny")
    client = plain_client.connected(port, plain_client.FRAMES, node.answer)
    vehicle = Publisher(port, bag, 2)
    with Repository(models).load("tiny") as model:
        for frame in (0, 1):
            times = vehicle.send({"frame": frame, "keep": str(tmp_path)})
            cloud = node.last({})
            sent = cv2.imread(str(file_of(tmp_path, "sent", frame)), cv2.IMREAD_COLOR_RGB)
            assert sent is not None
            assert sent.shape == (160, 256, 3)  # The whole frame.
            mask = model.predict(fitted(np.asarray(sent, np.uint8), 64, 96)[None])[0]
            answer = file_of(tmp_path, "returned", frame).read_bytes()
            share = kept(answer, mask, model.card.labels)
            assert share.nearest > 0.5  # Of noise in twelve colours, JPEG leaves that much; another mask, a twelfth.
            assert share.exact < 1.0
            parts = ("decoded", "resized", "inferred", "painted")
            assert sum(cloud[part] for part in parts) == pytest.approx(cloud["in_callback"])
            assert times["away"] > cloud["in_callback"]
            assert times["bytes_down"] == len(answer)
    vehicle.close()
    client.disconnect()
    client.loop_stop()


@pytest.mark.mosquitto
def test_a_frame_that_nobody_answers_is_told(port: int, bag: Path) -> None:
    """The bench shows the last line of a process that ended, and an empty queue's says nothing."""
    vehicle = Publisher(port, bag, 1, answer_s=0.2)
    with pytest.raises(BenchError, match=r"no picture came back for frame 0 within 0\.2 s"):
        vehicle.send({"frame": 0})
    vehicle.close()


@pytest.mark.mosquitto
def test_what_cannot_start_says_why(models: Path, tmp_path: Path) -> None:
    """A bench that waits for a process that is gone would wait for ever."""
    plan = Plan(bag=tmp_path / "none", models=models, model="absent")
    with ExitStack() as stack, pytest.raises(BenchError, match=r"mqtt_cloud: .*absent"):
        MqttBaseline(stack, plan, tmp_path)


def test_nobody_at_the_port_is_told_at_once() -> None:
    """The library would try for ever."""
    with pytest.raises(OSError, match="refused"):
        plain_client.connected(free_port(), plain_client.MASKS, lambda *_: None)
