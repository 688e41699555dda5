"""Plug-ins of another distribution, installed from its wheel: a real worker and a real vehicle with one of each kind."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from ops.processes.worker_process import Worker
from shared.files import tree_sha256
from shared.runlog.latency_log import read_rows
from shared.runlog.presented_log import OutputOrigin, read_presented
from shared.runlog.run_manifest import MANIFEST_NAME
from tests.pipeline.rig import WAIT_S

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "plugins"
EXAMPLE = ROOT / "examples" / "sink_plugin"
FRAMES, PIXELS = 4, 64 * 96


def install(source: Path, folder: Path) -> Path:
    """Builds the wheel of a distribution without a network and installs it; returns the folder for PYTHONPATH."""
    copy = folder / "source"
    copy.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder / "wheels", copy]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (folder / "wheels").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed plug-ins."""
    return install(SOURCE, tmp_path_factory.mktemp("plugins"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model that only plug-ins can run."""
    return write_model(tmp_path_factory.mktemp("repository") / "models")


@pytest.fixture
def imports(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Adds the plug-ins to the processes of a test; the file that this returns has a line for each import of them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(ROOT))))
    monkeypatch.setenv("ALL_KINDS_LOG", str(tmp_path / "imports"))
    return tmp_path / "imports"


@pytest.fixture(scope="module")
def served(site: Path, models: Path, embedded_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a worker that uses the plug-ins, and has noted that it imported them; yields its address."""
    log = tmp_path_factory.mktemp("worker") / "imports"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(ROOT))))
        patch.setenv("ALL_KINDS_LOG", str(log))
        with Worker(embedded_url, models=models, model="strongest"):
            assert log.exists()
            yield embedded_url


def skylane(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "skylane", *arguments],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def write_model(root: Path) -> Path:
    """Writes a model that only plug-ins can run; returns its repository."""
    folder = root / "strongest"
    folder.mkdir(parents=True)
    np.save(folder / "weights.npy", np.eye(3, dtype=np.float32))
    manifest = {
        "task": "colours",
        "format": "matrix",
        "engine": "linear",
        "file": "weights.npy",
        "sha256": tree_sha256(folder / "weights.npy"),
        "input": {"tensor": "pixels", "height": 64, "width": 96},
        "output": {"tensor": "classes", "kind": "class_ids"},
        "labels": [{"name": name, "colour": [index, 0, 0]} for index, name in enumerate(("red", "green", "blue"))],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return root


def test_a_run_uses_a_plug_in_of_each_kind(served: str, imports: Path, tmp_path: Path) -> None:
    """Source, codecs, engine, task, transport, presenter and sink are chosen by their names alone."""
    out = tmp_path / "run"
    flags = ["--transport", "relay", "--codec", "differences", "--mask-codec", "nibbles", "--present", "reverse"]
    ended = skylane(
        *("edge", "play", f"noise:{FRAMES}", "--broker", served, "--model", "strongest", "--out", out),
        *("--sink", "counts", "--closed-loop", *flags),
    )
    assert ended.returncode == 0, ended.stderr
    rows = list(read_rows(out))
    assert Counter((row["outcome"], row["engine"]) for row in rows) == {("answered", "linear fp32"): FRAMES}
    counts: dict[str, list[int]] = {}
    for line in (out / "counts.txt").read_text().splitlines():
        index, origin, numbers = line.split(" ", 2)
        counts[index] = ast.literal_eval(numbers)
        pixels = np.random.default_rng(int(index)).integers(0, 256, (64, 96, 3), np.uint8)
        assert counts[index] == np.bincount(pixels.argmax(axis=2).reshape(-1), minlength=3).tolist()
        assert (origin, sum(counts[index])) == ("worker", PIXELS)
    assert len(counts) == FRAMES
    presented = {row.tick: row for row in read_presented(out) if row.origin is not OutputOrigin.NONE}
    for line in (out / "presented" / "counts.txt").read_text().splitlines():
        index, origin, numbers = line.split(" ", 2)
        source = str(presented[int(index)].source_sequence)
        assert (origin, ast.literal_eval(numbers)) == ("warped", counts[source][::-1])
    assert imports.exists()


def test_a_vehicle_runs_its_local_model_on_the_engine_of_a_plug_in(
    served: str, models: Path, imports: Path, tmp_path: Path
) -> None:
    """A vehicle with an accelerator of its own brings the engine for it. The manifest of the model names the engine."""
    out = tmp_path / "run"
    ended = skylane(
        *("edge", "play", f"noise:{FRAMES}", "--broker", served, "--model", "strongest", "--out", out),
        *("--sink", "counts", "--closed-loop", "--local-model", "strongest", "--models", models),
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((out / MANIFEST_NAME).read_text())["reuse"]["local"]["engine"] == "linear fp32"
    assert "frames answered by the vehicle (strongest" in ended.stdout
    assert imports.exists()


def test_a_plug_in_that_is_not_named_is_not_imported(imports: Path) -> None:
    """The lists of choices have the names of the plug-ins, which need no import."""
    for command, names in ((("edge", "play"), ["relay", "differences", "nibbles", "reverse", "counts"]),
                           (("cloud", "serve"), ["linear"])):  # fmt: skip
        shown = skylane(*command, "--help-all")
        assert shown.returncode == 0, shown.stderr
        assert [name for name in names if name not in "".join(shown.stdout.split())] == []
    assert not imports.exists()


def test_a_plug_in_that_cannot_be_imported_is_refused_with_its_distribution(
    served: str, imports: Path, tmp_path: Path
) -> None:
    """A user of ours has never heard of the module that fails."""
    flags = ("--broker", served, "--model", "strongest", "--sink", "broken", "--out", tmp_path / "run")
    ended = skylane("edge", "play", "noise:2", *flags)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("skylane: sink 'broken' of all-kinds 0.1 cannot be used: ModuleNotFoundError: ")
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()
    assert imports.exists()
