"""Runs a study with real processes: Mosquitto, TensorFlow workers with a tiny model, and vehicles."""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml
from click.testing import CliRunner

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from modelling.evaluation.evaluate import evaluate_segmentation
from ops.study.cli import study
from rosbag_tools.drive.recording import sample_bag
from rosbag_tools.drive.scene import CLASSES as DRIVE_CLASSES
from shared.files import tree_sha256
from shared.models.repository import Repository
from tests.support.command import Command

ROOT = Path(__file__).parents[3]
_HEIGHT, _WIDTH, _CLASSES = 32, 48, 4
_LIMIT_S = 300.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the model `tiny`, a frozen graph."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    weights = np.random.default_rng(7).normal(size=(3, 3, 3, _CLASSES)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.uint8, (None, _HEIGHT, _WIDTH, 3), "input")
        scores = tf.nn.conv2d(tf.cast(images, tf.float32), weights, 1, "SAME")
        tf.cast(tf.argmax(scores, -1), tf.uint8, name="prediction")
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    manifest = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input:0", "height": _HEIGHT, "width": _WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": name, "colour": [number, 0, 0]} for number, name in enumerate(DRIVE_CLASSES[:_CLASSES])],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return folder.parent


def _arguments(document: dict[str, Any], models: Path, folder: Path) -> list[str]:
    """Writes a study to a folder; returns the arguments of the command that runs it there."""
    file = folder / f"{document['name']}.yaml"
    file.write_text(yaml.safe_dump(document))
    return ["run", str(file), "--models", str(models), "--out", "study"]


def _run(document: dict[str, Any], models: Path, folder: Path) -> str:
    """Runs a study, which must succeed, in a folder; returns its output."""
    with contextlib.chdir(folder):
        ended = CliRunner(env={"PYTHONPATH": str(ROOT)}).invoke(study, _arguments(document, models, folder))
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended.stdout


@pytest.mark.mosquitto
def test_a_study_from_its_file_to_its_tables_through_an_interruption(models: Path, tmp_path: Path) -> None:
    """A real study of three cells, one with gRPC and one that cannot run, is interrupted by Ctrl-C and resumed."""
    small = {
        "name": "small",
        "axes": {"model": "tiny", "codec": "jpeg-90", "resolution": "192x128", "link": "5g"},
        "include": [{"format": "saved_model", "codec": "raw"}, {"transport": "grpc", "codec": "raw"}],
        "repetitions": 2,
        "frames": 4,
        "warm_up_frames": 1,
        "cool_down_s": 0,
        "drive_frames": 3,
    }
    root = tmp_path / "study"
    with Command("study", *_arguments(small, models, tmp_path), "--seed", 11, cwd=tmp_path) as running:
        while " #1: total_p90_ms" not in running.read_line():
            pass
        children = psutil.Process(running.pid).children(recursive=True)
        code, output = running.end(signal.SIGINT, _LIMIT_S)
    assert code == 130, running.log_lines
    assert "interrupted: the same command resumes the study" in output
    assert psutil.wait_procs(children, timeout=_LIMIT_S)[1] == []
    first = pd.read_parquet(root / "runs.parquet")
    assert json.loads((root / "manifest.json").read_text())["state"] == "interrupted"

    again = small | {"description": "This changes no plan."}
    with Command("study", *_arguments(again, models, tmp_path), cwd=tmp_path) as running:
        code, output = running.wait(_LIMIT_S)
    assert code == 1, running.log_lines
    done_before = int((first["state"] == "done").sum())
    assert f"resuming: {done_before} of 6 runs are already done" in output
    assert "4 runs done, 0 skipped, 2 failed" in output
    runs = pd.read_parquet(root / "runs.parquet").sort_values("order")
    failed, done = runs[runs["state"] == "failed"], runs[runs["state"] == "done"]
    assert set(first.loc[first["state"] == "done", "started_ns"]) <= set(done["started_ns"])
    (reason,) = set(failed["reason"])
    assert reason.startswith("model 'tiny' is fp32 frozen_graph, from which no fp32 saved_model can be made: leave out")
    assert (done["answered"] == 5).all()
    # The link delays each direction by 8 ms.
    assert (done["crossing_p50_ms"] >= 16).all()
    assert (done["worker_rss_mb"] > 50).all()
    assert done["source_sha256"].nunique() == done["model_sha256"].nunique() == 1
    assert set(zip(done["engine"], done["precision"], strict=True)) == {("tensorflow", "fp32")}
    assert set(done["validity"]) == {"INVALID"}
    assert output.count("INVALID by MLPerf's rules: the figures are as measured") == 1
    frames = pd.read_parquet(root / "frames.parquet")
    assert frames.groupby("phase").size().to_dict() == {"measured": 16, "warm_up": 4}
    by_codec = frames.groupby("codec")["bytes_up"].min()
    assert by_codec["raw"] > 3 * _HEIGHT * _WIDTH > by_codec["jpeg-90"]
    manifest = json.loads((root / "manifest.json").read_text())
    assert (manifest["kind"], manifest["state"], manifest["seed"]) == ("study", "complete", 11)
    assert (manifest["planned"], manifest["done"], manifest["failed"]) == (6, 4, 2)
    assert manifest["axes"]["codec"] == ["jpeg-90", "raw"]
    assert (root / "report.html").stat().st_size > 0


@pytest.mark.mosquitto
def test_the_accuracy_of_a_run_is_that_of_the_model_on_the_same_frames(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of uncompressed frames equal the model's own; two vehicles and a repeated drive do not change the value."""
    document = {
        "name": "accuracy",
        "accuracy": True,
        "axes": {"model": "tiny", "scenario": "different_images", "codec": ["raw", "jpeg-5"], "resolution": "192x128"},
        "include": [{"codec": "raw", "vehicles": 2, "resize_at": "cloud"}],
        "repetitions": 1,
        "frames": 149,  # Enough for two vehicles to run at the same time, and with the warm-up 50 rounds of the drive.
        "warm_up_frames": 1,
        "cool_down_s": 0,
        "drive_frames": 3,
    }
    output = _run(document, models, tmp_path)
    monkeypatch.chdir(tmp_path)
    model = ModelLoader(Repository(models)).open("tiny")
    expected = evaluate_segmentation(model, sample_bag(3, width=192, height=128)).mean_iou
    runs = pd.read_csv("study/runs.csv").set_index("cell")
    assert runs.loc["raw.default-resize_at.1-vehicle", "mean_iou"] == pytest.approx(expected)
    assert runs.loc["raw.cloud.2-vehicles", "mean_iou"] == pytest.approx(expected)
    assert runs.loc["jpeg-5.default-resize_at.1-vehicle", "mean_iou"] != pytest.approx(expected)
    assert runs["masks_compared"].tolist() == pytest.approx(150 * runs["vehicles"])
    assert f"{expected:.4f}" in output
    assert not [*Path("study").rglob("*.mcap")]
    assert 'id="accuracy"' in Path("study/report.html").read_text(encoding="utf-8")


@pytest.mark.mosquitto
def test_presenters_are_compared_by_their_streaming_accuracy(models: Path, tmp_path: Path) -> None:
    """What a presenter gives is compared with the labels of its tick, and removed afterwards like the masks."""
    document = {
        "name": "presented",
        "accuracy": True,
        "axes": {
            "model": "tiny",
            "scenario": "camera",
            "resolution": "192x128",
            "present": ["none", "hold"],
            "fixed_inference_ms": 120,
        },
        "repetitions": 1,
        "frames": 12,
        "warm_up_frames": 4,
        "drive_frames": 16,
        "cool_down_s": 0,
    }
    _run(document, models, tmp_path)
    runs = pd.read_csv(tmp_path / "study" / "runs.csv").set_index("cell")
    assert list(runs.index.sort_values()) == ["hold", "no-presenter"]
    assert (runs["at_tick_mean_iou"] > 0).all()
    assert (
        list(runs["for_tick_mean_iou"].notna())
        == list(runs["after_due_p50_ms"] > 0)
        == [cell == "hold" for cell in runs.index]
    )
    assert (runs["output_age_p50_ms"] >= 100).all()
    assert (runs["ticks_scored"] == 12).all()
    assert not [*(tmp_path / "study").rglob("*.mcap")]
    assert [*(tmp_path / "study").rglob("presented.csv")]
    assert 'id="streaming"' in (tmp_path / "study" / "report.html").read_text(encoding="utf-8")


@pytest.mark.mosquitto
def test_a_gate_saves_inferences_of_a_worker_with_a_fixed_time(models: Path, tmp_path: Path) -> None:
    """The worker gives the model's own answers, which are computed once for each drive; each repetition has its drive."""
    document = {
        "name": "gated",
        "axes": {
            "model": "tiny",
            "scenario": "one_per_worker",
            "resolution": "192x128",
            "gate": "mse-60000",
            "fixed_inference_ms": 30,
        },
        "static_camera": True,
        "drive_seeds": [7, 8],
        "repetitions": 2,
        "frames": 12,
        "drive_frames": 4,
        "cool_down_s": 0,
    }
    _run(document, models, tmp_path)
    runs = pd.read_parquet(tmp_path / "study" / "runs.parquet").sort_values("repetition")
    assert (runs["answered"] + runs["reused"]).tolist() == [12, 12]
    assert (runs["reused"] > 0).all()
    assert runs["frames_sent"].tolist() == runs["answered"].tolist()
    assert (runs["inferred_p50_ms"] >= 30).all()
    assert runs["drive_seed"].tolist() == [7, 8]
    assert len([*(tmp_path / "runs" / "answers").rglob("*.npz")]) == 2
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "Burst latency" in page
    assert "reused %" in page


@pytest.mark.mosquitto
def test_dispatch_is_compared_on_workers_of_unequal_speed(models: Path, tmp_path: Path) -> None:
    """Both ways of dispatch meet the same workers; the log of each vehicle says how its frames were sent."""
    document = {
        "name": "dispatched",
        "axes": {
            "model": "tiny",
            "scenario": "one_per_worker",
            "resolution": "192x128",
            "dispatch": ["load", "group"],
            "workers": 2,
            "fixed_inference_ms": "20/400",
        },
        "repetitions": 1,
        "frames": 20,
        "drive_frames": 4,
        "cool_down_s": 0,
    }
    _run(document, models, tmp_path)
    runs = pd.read_parquet(tmp_path / "study" / "runs.parquet").set_index("dispatch")
    assert runs["answered"].to_dict() == {"load": 20, "group": 20}
    assert set(runs["fixed_inference_ms"]) == {"20/400"}
    frames = pd.read_parquet(tmp_path / "study" / "frames.parquet")
    assert set(frames.loc[frames["cell"] == "group", "dispatch"]) == {"group"}
    by_load = frames[frames["cell"] == "load"]
    assert "load" in set(by_load["dispatch"])
    workers = by_load["worker"].value_counts()
    assert workers["worker-1"] > workers.get("worker-2", 0)
    assert "dispatch" in (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
