"""Replay and load settings of a run: arrivals, queue, bursts, batches, a part of a source, and the node that resizes."""

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from edge.config import Arrivals
from edge.pacing import poisson_ns
from shared import clock
from shared.imaging import geometry
from shared.inference.model import Model
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import (
    HEIGHT,
    WAIT_S,
    WIDTH,
    Vehicle,
    check_masks,
    count_outcomes,
    direct,
    memory_bus,
    noise,
    pictures,
    play,
    serving,
    worker,
)
from tests.support.model_folder import write_model

FRAMES, RATE_HZ = 150, 100.0
STALL_FROM, STALL_TO = 25, 75  # Frames that are due while the worker is paused.
STALL_MS = (STALL_TO - 1 - STALL_FROM) * 1e3 / RATE_HZ


def test_a_pause_of_the_worker_shows_in_p99(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no coordinated omission: latency counts from the due time, not from the send time.

    Counted from the send time, as in a closed loop, only one frame in 150 would show the pause, and p99 would not.
    """
    infer, gate, inferred, ends_ns = model.infer, threading.Event(), iter(range(FRAMES)), list[int]()

    def go_on() -> None:
        if not gate.is_set():
            ends_ns.append(clock.now_ns())
            gate.set()

    def stall_once(images: Any) -> Any:
        if next(inferred) == STALL_FROM:
            assert gate.wait(WAIT_S)
        return infer(images)

    monkeypatch.setattr(model, "infer", stall_once)
    with memory_bus() as bus, serving(lambda _: bus, model):
        vehicle = Vehicle(
            bus, pictures(tmp_path, 20), tmp_path / "car", closed_loop=False, arrivals=Arrivals.UNIFORM, window=1,
            arrival_rate_hz=RATE_HZ, loop=True, frames=FRAMES, queue=FRAMES,
        )  # fmt: skip
        rows = vehicle.play(lambda: go_on() if vehicle.counts().read >= STALL_TO else None)
    rows.sort(key=lambda row: int(row["sequence"]))
    due = [int(row["t_due_ns"]) for row in rows]
    assert [at_ns - due[0] for at_ns in due] == [round(index * 1e9 / RATE_HZ) for index in range(FRAMES)]
    assert count_outcomes(rows) == {("answered", ""): FRAMES}
    total_ms = np.array([float(row["total_ms"]) for row in rows])
    for index in range(STALL_FROM, STALL_TO):  # The pause ended after its last frame was due.
        assert total_ms[index] >= (STALL_TO - 1 - index) * 1e3 / RATE_HZ
    assert np.percentile(total_ms, 99) >= 0.9 * STALL_MS
    (end_ns,) = ends_ns
    in_flight = [row for row in rows if int(row["t_sent_ns"]) < end_ns < int(row["t_returned_ns"])]
    assert len(in_flight) == 1


def test_a_poisson_run_can_be_repeated_from_its_manifest(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """The manifest contains the random seed, and the due times follow from it."""
    out = tmp_path / "car-poisson"
    with worker(mosquitto_url, model):
        load: dict[str, Any] = {"arrivals": "poisson", "arrival_rate_hz": 200.0, "queue": 64}
        code, printed = play(pictures(tmp_path, 30), mosquitto_url, out, sinks=(), **load)
    assert code == 0, printed
    configuration = read_manifest(out)["configuration"]
    assert {key: configuration[key] for key in load} == load
    due = sorted(int(row["t_due_ns"]) for row in read_rows(out))
    assert [at_ns - due[0] for at_ns in due] == list(islice(poisson_ns(200.0, configuration["seed"]), 30))


def test_the_worker_resizes_frames_exactly_like_the_vehicle(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """This holds for frames of mixed sizes and a lossless codec."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    sizes = [(2 * HEIGHT, 3 * WIDTH), (HEIGHT, WIDTH), (HEIGHT // 2, WIDTH), (50, 70), (3 * HEIGHT, WIDTH)]
    for index, size in enumerate(sizes):
        cv2.imwrite(str(folder / f"{index}.png"), noise(index, (*size, 3)))
    found: dict[tuple[str, str], list[Any]] = {}
    with worker(mosquitto_url, model):
        for place in ("edge", "cloud"):
            for mask_size in ("model", "frame"):
                out = tmp_path / f"car-{place}-{mask_size}"
                code, printed = play(
                    folder, mosquitto_url, out, closed_loop=True, codec="zstd", resize_at=place, mask_size=mask_size
                )
                assert code == 0, printed
                assert {row["outcome"] for row in read_rows(out)} == {"answered"}
                paths = sorted((out / "masks").rglob("*.png"))
                found[place, mask_size] = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in paths]
    for index, size in enumerate(sizes):
        plan = geometry.plan(model.card.resize, *size, HEIGHT, WIDTH)
        rgb = np.ascontiguousarray(noise(index, (*size, 3))[..., ::-1])
        mask = direct(model, geometry.apply(rgb, plan))
        for place in ("edge", "cloud"):
            np.testing.assert_array_equal(found[place, "model"][index], mask)
            np.testing.assert_array_equal(found[place, "frame"][index], geometry.to_source(mask, plan, 255))


@pytest.fixture
def any_batch(models: Path, tmp_path: Path) -> Path:
    """Returns a repository with `tiny` as a graph for any batch size."""
    graph = tf.compat.v1.GraphDef.FromString((models / "tiny" / "model.pb").read_bytes())
    (placeholder,) = (node for node in graph.node if node.op == "Placeholder")
    placeholder.attr["shape"].shape.dim[0].size = -1
    manifest = yaml.safe_load((models / "tiny" / "model.yaml").read_text())
    keys = {key: value for key, value in manifest.items() if key not in ("file", "sha256")}
    write_model(tmp_path / "models" / "tiny", "model.pb", graph.SerializeToString(), **keys)
    return tmp_path / "models"


def test_frames_of_a_burst_are_inferred_in_batches(
    any_batch: Path, mosquitto_url: str, model: Model, tmp_path: Path
) -> None:
    """The log contains the batch size, and each frame has its own mask."""
    out = tmp_path / "car-batch"
    with (
        ModelLoader(Repository(any_batch), max_batch=4).open("tiny") as batching,
        worker(mosquitto_url, batching, max_wait_ms=10_000.0),
    ):
        code, printed = play(
            pictures(tmp_path, 16), mosquitto_url, out, closed_loop=True, burst=8, window=8, codec="raw"
        )
    assert code == 0, printed
    assert [row["batch_size"] for row in read_rows(out)] == ["4"] * 16
    check_masks(out, model, 16)


def test_a_slow_worker_gets_the_newest_frame(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an open loop, frames that do not fit into the window are dropped, but never the newest."""
    count = 40
    infer, gate = model.infer, threading.Event()

    def slowly(images: Any) -> Any:
        assert gate.wait(WAIT_S)
        return infer(images)

    monkeypatch.setattr(model, "infer", slowly)
    with memory_bus() as bus, serving(lambda _: bus, model):
        vehicle = Vehicle(bus, pictures(tmp_path, count), tmp_path / "car", closed_loop=False, rate=1e6, window=1)
        rows = vehicle.play(lambda: gate.set() if vehicle.counts().read == count else None)
    assert len(rows) == count
    answered = [int(row["sequence"]) for row in rows if row["outcome"] == "answered"]
    assert count - 1 in answered
    assert len(answered) <= 2
    assert set(count_outcomes(rows)) == {("answered", ""), ("dropped", "window")}


def test_a_part_of_a_source_can_be_played(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """The options are those of `ros2 bag play`."""
    out = tmp_path / "car-part"
    with worker(mosquitto_url, model):
        code, printed = play(
            pictures(tmp_path, 20),
            mosquitto_url,
            out,
            closed_loop=True,
            start_offset_s=0.5,
            playback_duration_s=1.0,
            sinks=(),
        )
    assert code == 0, printed
    assert read_manifest(out)["outcomes"]["answered"] == 10
    assert not (out / "masks").exists()
