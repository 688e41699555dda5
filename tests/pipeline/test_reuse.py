"""Frames that are not sent, end to end: the difference detector, the local model and the cascade."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from bench.logs.audit import audit
from cloud.models.loader import ModelLoader
from shared.models.model import Model
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import HEIGHT, WIDTH, check, noise, play, worker
from tests.support.local_models import write_brightness

DARK, DIM, GREY, BRIGHT = 20, 60, 128, 230


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


@pytest.mark.mosquitto
def test_similar_frames_get_the_result_of_an_earlier_one(mosquitto_url: str, reference: Model, tmp_path: Path) -> None:
    """A fixed camera sends one frame for each change of its scene."""
    levels = [DARK] * 5 + [BRIGHT] * 5 + [DARK] * 5
    with worker(mosquitto_url, reference):
        rows, lines, manifest, printed = played(
            mosquitto_url, scene(tmp_path, levels), tmp_path / "car", gate="mse", gate_threshold=5.0
        )
    assert outcomes(rows) == {"answered": 3, "reused": 12}
    assert [row["reused_sequence"] for row in rows] == ["", *"0000", "", *"5555", "", *["10"] * 4]
    assert all(float(row["gate_distance"]) <= 5 for row in rows if row["outcome"] == "reused")
    assert [line["classes"][0]["name"] for line in lines] == [("dark", "bright")[level == BRIGHT] for level in levels]
    assert Counter(line["origin"] for line in lines) == {"worker": 3, "reused": 12}
    assert [line.get("reused_sequence") for line in lines[:6]] == [None, 0, 0, 0, 0, None]
    assert manifest["reuse"]["gate"] == {
        "method": "mse", "threshold": 5.0, "threshold_from": "options", "reuse_frames": 100, "reuse_ms": 10000.0, "resets": 0
    }  # fmt: skip
    assert "12 frames got the result of an earlier frame" in printed


@pytest.mark.mosquitto
def test_the_local_model_answers_where_it_is_sure(
    mosquitto_url: str, repository: Path, reference: Model, tmp_path: Path
) -> None:
    """Only the frames between need the reference model."""
    levels = [DARK, BRIGHT, GREY, DARK, GREY, BRIGHT]
    with worker(mosquitto_url, reference):
        rows, lines, manifest, printed = played(
            mosquitto_url,
            scene(tmp_path, levels),
            tmp_path / "car",
            local_model="local",
            models=repository,
            cascade=True,
            c_low=0.1,
            c_high=0.9,
        )
    assert [row["outcome"] == "answered" for row in rows] == [level == GREY for level in levels]
    assert outcomes(rows) == {"answered": 2, "answered_locally": 4}
    assert all(row["local_confidence"] for row in rows)
    assert {row["engine"] for row in rows if row["outcome"] == "answered_locally"} == {"onnxruntime fp32"}
    assert [line["classes"][0]["name"] for line in lines] == ["dark", "bright", "bright", "dark", "bright", "bright"]
    assert Counter(line["origin"] for line in lines) == {"worker": 2, "local": 4}
    local = manifest["reuse"]["local"]
    assert (local["name"], local["c_low"], local["c_high"], local["temperature"]) == ("local", 0.1, 0.9, 1.0)
    assert (local["failures"], local["switched_off"]) == ({}, "")
    assert "4 frames answered by the vehicle (local 1, onnxruntime fp32" in printed
