from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from bench.baselines.first_system_mqtt import MASKS, CallbackNode, MqttBaseline, Publisher, connect, write_broker_config
from bench.baselines.images import compare_mask, fit
from bench.harness import BenchRun
from cloud.models.loader import ModelLoader
from ops.broker.broker import Broker
from ops.processes.child import BenchError
from ops.processes.playback import PlaybackSettings
from shared.models.repository import Repository
from shared.network.endpoint import free_port


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a Mosquitto with default settings."""
    port = free_port()
    with Broker.start(config=write_broker_config(tmp_path, port)):
        yield port


@pytest.mark.mosquitto
def test_a_frame_is_returned_as_a_coloured_mask(port: int, models: Path, bag: Path, tmp_path: Path) -> None:
    """The baseline must do all the work that is timed: decode, crop, infer, colour and return."""
    node = CallbackNode(port, str(models), "tiny")
    vehicle = Publisher(port, str(bag), 2)
    with ModelLoader(Repository(models)).open("tiny") as model:
        for frame in (0, 1):
            times = vehicle.send({"frame": frame, "keep": str(tmp_path)})
            cloud = node.last_times({})
            sent = cv2.imread(str(tmp_path / f"sent-{frame}.jpg"), cv2.IMREAD_COLOR_RGB)
            assert sent is not None
            assert sent.shape == (160, 256, 3)  # The whole frame.
            mask = model.predict(fit(np.asarray(sent, np.uint8), 64, 96)[None])[0]
            returned = (tmp_path / f"returned-{frame}.jpg").read_bytes()
            share = compare_mask(returned, mask, model.card.labels)
            assert share.nearest > 0.5  # JPEG keeps this much of noise in twelve colours; another mask, a twelfth.
            assert share.exact < 1.0
            parts = ("decoded", "resized", "inferred", "painted")
            assert sum(cloud[part] for part in parts) == pytest.approx(cloud["in_callback"])
            assert times["away"] > cloud["in_callback"]
            assert times["bytes_down"] == len(returned)
    for client in (vehicle.client, node.client):
        client.disconnect()
        client.loop_stop()


@pytest.mark.mosquitto
def test_a_frame_without_a_reply_raises(port: int, bag: Path) -> None:
    """The error must name the frame and the timeout."""
    vehicle = Publisher(port, str(bag), 1, reply_timeout_s=0.2)
    with pytest.raises(BenchError, match=r"no image was returned for frame 0 within 0\.2 s"):
        vehicle.send({"frame": 0})
    vehicle.client.disconnect()
    vehicle.client.loop_stop()


@pytest.mark.mosquitto
def test_a_baseline_that_cannot_start_reports_the_reason(models: Path, tmp_path: Path) -> None:
    """A benchmark must not wait for a process that has ended."""
    settings = PlaybackSettings(bag=tmp_path / "none", models=models, model="absent")
    with BenchRun() as run, pytest.raises(BenchError, match=r"cloud_node .*absent"):
        MqttBaseline(run, settings)


def test_a_closed_port_raises_at_once() -> None:
    """The library would retry endlessly."""
    with pytest.raises(OSError, match="refused"):
        connect(free_port(), MASKS, lambda *_: None)
