"""Frames that are not sent, end to end: the difference detector, the local model and the cascade."""

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from analysis.logs.audit import audit
from cloud.models.loader import ModelLoader
from shared.imaging.geometry import UNSEEN
from shared.inference.model import Model
from shared.models.manifest import Precision
from shared.models.repository import Repository
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import (
    CLASSES,
    HEIGHT,
    WAIT_S,
    WIDTH,
    Vehicle,
    check,
    connect,
    count_outcomes,
    noise,
    play,
    worker,
)
from tests.support.local_models import write_brightness, write_segmentation

DARK, GREY, BRIGHT = 20, 128, 230
CASCADE: dict[str, Any] = {"local_model": "local", "cascade": True, "c_low": 0.1, "c_high": 0.9}

pytestmark = pytest.mark.mosquitto


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a repository with the reference `tiny`, and `local`, which is only sure of dark and bright images."""
    root = tmp_path_factory.mktemp("brightness")
    write_brightness(root, "tiny", HEIGHT, WIDTH, steepness=1000.0)
    write_brightness(root, "local", HEIGHT // 2, WIDTH // 2, steepness=20.0)
    return root


@pytest.fixture(scope="module")
def reference(repository: Path) -> Iterator[Model]:
    """Loads the reference model for a worker."""
    with ModelLoader(Repository(repository)).open("tiny") as loaded:
        yield loaded


def scene(tmp_path: Path, levels: Sequence[int]) -> Path:
    """Makes a folder of grey images with a little noise."""
    folder = tmp_path / "scene"
    folder.mkdir()
    for index, level in enumerate(levels):
        image = level + noise(index, (HEIGHT, WIDTH, 3)) % 4
        cv2.imwrite(str(folder / f"{index:04d}.png"), image.astype(np.uint8))
    return folder


def played(
    url: str, source: Path, out: Path, exit_code: int = 0, **settings: Any
) -> tuple[list[dict[str, str]], list[dict[str, Any]], dict[str, Any], str]:
    """Plays in a closed loop; returns the rows, the lines of `results.jsonl`, the manifest, and what was printed."""
    options: dict[str, Any] = {"closed_loop": True, "window": 1, "sinks": ("jsonl",)}
    code, printed = play(source, url, out, **options | settings)
    assert code == exit_code, printed
    rows = sorted(read_rows(out), key=lambda row: int(row["sequence"]))
    check(rows)
    assert audit(out) == ()
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return rows, sorted(lines, key=lambda line: int(line["sequence"])), read_manifest(out), printed


def outcomes(rows: Sequence[dict[str, str]]) -> Counter[str]:
    """Counts the rows by outcome."""
    return Counter(row["outcome"] for row in rows)


def test_similar_frames_get_the_result_of_an_earlier_one(mosquitto_url: str, reference: Model, tmp_path: Path) -> None:
    """A fixed camera sends one frame for each change of its scene, or of its size, which is counted."""
    levels = [DARK] * 5 + [BRIGHT] * 5 + [DARK] * 5
    source = scene(tmp_path, levels)
    for index in (13, 14):
        cv2.imwrite(str(source / f"{index:04d}.png"), np.full((2 * HEIGHT, 2 * WIDTH, 3), DARK, np.uint8))
    with worker(mosquitto_url, reference):
        rows, lines, manifest, printed = played(mosquitto_url, source, tmp_path / "car", gate="mse", gate_threshold=5.0)
    assert outcomes(rows) == {"answered": 4, "reused": 11}
    assert [row["reused_sequence"] for row in rows] == ["", *"0000", "", *"5555", "", "10", "10", "", "13"]
    assert all(float(row["gate_distance"]) <= 5 for row in rows if row["outcome"] == "reused")
    assert [line["classes"][0]["name"] for line in lines] == [("dark", "bright")[level == BRIGHT] for level in levels]
    assert Counter(line["origin"] for line in lines) == {"worker": 4, "reused": 11}
    assert [line.get("reused_sequence") for line in lines[:6]] == [None, 0, 0, 0, 0, None]
    assert manifest["reuse"]["gate"] == {
        "method": "mse", "threshold": 5.0, "threshold_from": "options", "reuse_frames": 100, "reuse_ms": 10000.0, "resets": 1
    }  # fmt: skip
    assert "11 frames got the result of an earlier frame" in printed
    assert "WARNING: changes of a camera's frame size or encoding: 1;" in printed


def test_the_local_model_answers_where_it_is_sure(
    mosquitto_url: str, repository: Path, reference: Model, tmp_path: Path
) -> None:
    """Only the frames between need the reference model."""
    levels = [DARK, BRIGHT, GREY, DARK, GREY, BRIGHT]
    with worker(mosquitto_url, reference):
        rows, lines, manifest, printed = played(
            mosquitto_url, scene(tmp_path, levels), tmp_path / "car", models=repository, **CASCADE
        )
    assert [row["outcome"] == "answered" for row in rows] == [level == GREY for level in levels]
    assert outcomes(rows) == {"answered": 2, "answered_locally": 4}
    assert all(row["local_confidence"] for row in rows)
    assert {row["engine"] for row in rows if row["outcome"] == "answered_locally"} == {"onnxruntime fp32"}
    assert [line["classes"][0]["name"] for line in lines] == ["dark", "bright", "bright", "dark", "bright", "bright"]
    assert Counter(line["origin"] for line in lines) == {"worker": 2, "local": 4}
    assert {(line["origin"], line["model"]) for line in lines} == {("worker", "tiny"), ("local", "local")}
    local = manifest["reuse"]["local"]
    assert (local["name"], local["c_low"], local["c_high"], local["temperature"]) == ("local", 0.1, 0.9, 1.0)
    assert (local["failures"], local["switched_off"]) == ({}, "")
    assert "4 frames answered by the vehicle (local 1, onnxruntime fp32" in printed


def test_gate_and_cascade_work_together(mosquitto_url: str, repository: Path, reference: Model, tmp_path: Path) -> None:
    """The result of the local model is reused like that of a worker."""
    levels = [DARK] * 3 + [GREY] * 3 + [BRIGHT] * 3
    with worker(mosquitto_url, reference):
        rows, *_ = played(
            mosquitto_url,
            scene(tmp_path, levels),
            tmp_path / "car",
            gate="pixels",
            gate_threshold=1.0,
            models=repository,
            **CASCADE,
        )
    assert outcomes(rows) == {"answered": 1, "answered_locally": 2, "reused": 6}
    assert [row["reused_sequence"] for row in rows] == ["", "0", "0", "", "3", "3", "", "6", "6"]


def shade(number: float) -> int:
    """Returns the grey level of a class of the segmentation."""
    return round(number * 255 / (CLASSES - 1))


def test_masks_of_the_local_model_are_like_those_of_the_reference(mosquitto_url: str, tmp_path: Path) -> None:
    """They have the size of the frame too, and videos show them in order."""
    for name, factor in (("tiny", 1), ("local", 2)):
        write_segmentation(tmp_path, name, HEIGHT // factor, WIDTH // factor, CLASSES)
    source = tmp_path / "shades"
    source.mkdir()
    numbers = [2, 2.5, 2.5, 7, 3, 3]
    for index, number in enumerate(numbers):
        cv2.imwrite(str(source / f"{index}.png"), np.full((2 * HEIGHT, 3 * WIDTH, 3), shade(number), np.uint8))
    with ModelLoader(Repository(tmp_path)).open("tiny") as model, worker(mosquitto_url, model):
        code, printed = play(
            source,
            mosquitto_url,
            tmp_path / "car",
            closed_loop=True,
            window=1,
            sinks=("png", "video", "bag", "overlay"),
            gate="mse",
            gate_threshold=1.0,
            local_model="local",
            models=tmp_path,
            cascade=True,
            c_high=0.9,
            mask_size="frame",
            codec="raw",
        )
    assert code == 0, printed
    assert audit(tmp_path / "car") == ()
    rows = sorted(read_rows(tmp_path / "car"), key=lambda row: int(row["sequence"]))
    assert [row["outcome"] for row in rows] == [
        "answered_locally", "answered", "reused", "answered_locally", "answered_locally", "reused"
    ]  # fmt: skip
    paths = sorted((tmp_path / "car" / "masks").rglob("*.png"))
    masks: list[Any] = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in paths]
    assert [mask.shape for mask in masks] == [(2 * HEIGHT, 3 * WIDTH)] * len(numbers)
    for mask, number in zip(masks, numbers, strict=True):
        found = set(np.unique(mask)) - {UNSEEN}
        assert found <= {math.floor(number), math.ceil(number)}
        assert UNSEEN in mask  # The crop leaves out the sides of the frame.
    with av.open(str(next((tmp_path / "car").glob("overlay_*.webm")))) as video:
        assert sum(1 for _ in video.decode(video=0)) == len(numbers)
    assert "came too late" not in printed


class Waiting:
    """An engine that answers when it is released."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def infer(self, batch: Any) -> dict[str, Any]:
        """See Engine."""
        assert self._released.wait(WAIT_S)
        return {"scores": np.tile(np.array([0.0, 1.0], np.float32), (len(batch), 1))}

    def close(self) -> None:
        """See Engine."""


def test_the_local_model_answers_what_does_not_fit_into_the_window(
    mosquitto_url: str, repository: Path, reference: Model, tmp_path: Path
) -> None:
    """In an open loop, the frames were dropped without it."""
    released = threading.Event()
    slow = Model(reference.manifest, reference.card, Waiting(released))
    source = scene(tmp_path, [BRIGHT] * 10)
    with worker(mosquitto_url, slow):
        vehicle = Vehicle(
            connect(mosquitto_url),
            source,
            tmp_path / "car",
            closed_loop=False,
            arrivals="uniform",
            arrival_rate_hz=50.0,
            loop=True,
            window=2,
            local_model="local",
            models=repository,
        )

        def tick() -> None:
            if vehicle.counts().outcomes.get(Outcome.ANSWERED_LOCALLY, 0) >= 5:
                released.set()
                vehicle.stop()

        rows = vehicle.play(tick)
    assert outcomes(rows)["answered"] == 2
    assert outcomes(rows)["answered_locally"] >= 5
    assert {row["reason"] for row in rows if row["outcome"] == "answered_locally"} == {""}


def test_the_local_model_answers_when_no_worker_is_left(
    mosquitto_url: str, repository: Path, reference: Model, tmp_path: Path
) -> None:
    """A vehicle that loses its connection still gets results, at once."""
    with ExitStack() as serving:
        serving.enter_context(worker(mosquitto_url, reference))
        vehicle = Vehicle(
            connect(mosquitto_url),
            scene(tmp_path, [BRIGHT, DARK]),
            tmp_path / "car",
            loop=True,
            local_model="local",
            models=repository,
        )

        def tick() -> None:
            if vehicle.answered() >= 5:
                serving.close()
            if vehicle.counts().outcomes.get(Outcome.ANSWERED_LOCALLY, 0) >= 5:
                vehicle.stop()

        rows = vehicle.play(tick)
    ended = count_outcomes(rows)
    undelivered = ended.pop(("dropped", "no_worker"), 0)  # Sent before the worker's end was known.
    assert undelivered <= 4  # The window.
    assert set(ended) <= {("answered", ""), ("answered_locally", ""), ("dropped", "stopped")}
    assert ended["answered", ""] >= 5
