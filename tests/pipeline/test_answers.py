"""End-to-end runs with real parts: every mask is exactly the model's."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from cloud.config import CloudConfig
from cloud.node import CloudNode
from edge.sources.source import open_source
from rosbag_tools.writer import BagWriter
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.inference.model import Model
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.run_manifest import read_manifest
from tests.edge.samples import RecordingSink
from tests.pipeline.rig import (
    HEIGHT,
    WAIT_S,
    WIDTH,
    Vehicle,
    check,
    check_masks,
    connect,
    count_outcomes,
    direct,
    memory_bus,
    noise,
    pictures,
    play,
    serving,
    worker,
)
from tests.support.waiting import beside, until


def test_a_hundred_frames_get_exactly_the_models_masks(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """Every frame has a row, and every mask equals that of a direct call."""
    out = tmp_path / "car-100"
    with worker(mosquitto_url, model) as node:
        code, printed = play(pictures(tmp_path, 100), mosquitto_url, out, closed_loop=True, codec="raw")
        assert node.counts == {"answered": 100}
    assert code == 0, printed
    rows = list(read_rows(out))
    check(rows)
    assert count_outcomes(rows) == {("answered", ""): 100}
    assert [int(row["frame_index"]) for row in sorted(rows, key=lambda row: int(row["sequence"]))] == list(range(100))
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["frames_read"], manifest["rows_lost"]) == ("complete", 100, 0)
    assert manifest["outcomes"] == dict.fromkeys(Outcome, 0) | {"answered": 100}
    assert manifest["model"]["sha256"] == model.card.sha256
    assert not manifest["ignored_answers"]
    check_masks(out, model, 100)
    assert "100 answered frames" in printed
    assert "100 frames read" in printed
    assert "inferred" in printed


def test_a_bayer_bag_of_two_cameras_keeps_the_cameras_apart(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """The masks belong to the binned frames of the right camera."""
    bag, out = tmp_path / "drive.bag", tmp_path / "car-bag"
    left, right = "/sensors/camera/left/image_raw", "/sensors/camera/right/image_raw"
    with BagWriter(bag) as writer:
        for index in range(10):
            for camera, topic in enumerate((left, right)):
                stamp_ns = 10**18 + index * 10**8 + camera
                pixels = noise(index + 100 * camera, (2 * HEIGHT, 2 * WIDTH))
                writer.write_image(topic, pixels, "bayer_rggb8", stamp_ns, stamp_ns, "camera")
    with worker(mosquitto_url, model):
        code, printed = play(bag, mosquitto_url, out, closed_loop=True, codec="zstd", window=2)
        alone = tmp_path / "car-left"
        assert play(bag, mosquitto_url, alone, closed_loop=True, topics=(left,), sinks=())[0] == 0
    assert code == 0, printed
    rows = list(read_rows(out))
    check(rows)
    assert Counter(row["camera"] for row in rows) == {left: 10, right: 10}
    assert Counter(row["camera"] for row in read_rows(alone)) == {left: 10}
    assert sorted(read_manifest(out)["source"]["cameras"]) == [left, right]
    for row in rows:
        index = (int(row["frame_stamp_ns"]) - 10**18) // 10**8
        pixels = noise(index + 100 * (row["camera"] == right), (2 * HEIGHT, 2 * WIDTH))
        rgb = to_colour(pixels, Layout.BAYER_RGGB8, Layout.RGB8, "binning")
        assert rgb.shape == (HEIGHT, WIDTH, 3)
        path = out / "masks" / row["camera"].strip("/").replace("/", "_") / f"{int(row['frame_index']):06d}.png"
        mask: Any = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(mask, direct(model, rgb))


def test_video_and_bag_have_one_frame_per_mask(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """The video can be decoded, and the masks in the bag equal the PNG files."""
    out = tmp_path / "car-sinks"
    with worker(mosquitto_url, model):
        code, printed = play(
            pictures(tmp_path, 20), mosquitto_url, out, closed_loop=True, sinks=("png", "video", "bag")
        )
    assert code == 0, printed
    video = open_source(str(out / "overlay_pictures-20.webm"))
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


def test_a_run_waits_for_slow_sinks(model: Model, tmp_path: Path) -> None:
    """On a busy machine a video may be complete long after the last answer."""
    may_write = threading.Event()
    sink = RecordingSink(lambda _: may_write.wait(WAIT_S))
    with memory_bus() as bus, serving(lambda _: bus, model):
        vehicle = Vehicle(bus, pictures(tmp_path, 60), tmp_path / "car", sinks=[sink])

        def let_write_when_answered() -> None:
            until(lambda: vehicle.answered() == 60)
            may_write.set()

        with beside(let_write_when_answered):
            vehicle.play()
    assert sink.got == list(range(60))
    assert sink.is_closed


def test_a_second_worker_on_the_embedded_broker_is_refused_with_the_reason(embedded_url: str, model: Model) -> None:
    """Without shared subscriptions, both workers would answer every frame."""
    with worker(embedded_url, model):
        bus = connect(embedded_url)
        second = CloudNode([model], CloudConfig(worker="second"), session="s2")
        with pytest.raises(Exception, match=r"supports MQTT 3.1.1 only, which cannot share frames.*use Mosquitto"):
            second.serve(bus, lambda: None)
