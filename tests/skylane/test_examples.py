"""The programs of the page on the Python API and of `examples/`, run as they stand with a real worker and broker."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

import skylane
from ops.processes.worker_process import Worker
from tests.pipeline.rig import WAIT_S
from tests.skylane.test_plugins import install

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference/python-api.md").read_text(), re.DOTALL)
FRAMES = 5


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short synthetic drive, and one of its images beside it."""
    path = tmp_path_factory.mktemp("drive") / "drive.mcap"
    size = ("--width", "484", "--height", "304", "--frames", str(FRAMES))
    subprocess.run([sys.executable, "-m", "skylane", "bag", "make", path, *size], check=True, cwd=ROOT)
    image = next(iter(skylane.open_bag(path))).image
    cv2.imwrite(str(path.with_name("street.jpg")), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return path


@pytest.fixture(scope="module")
def served(embedded_url: str) -> Iterator[str]:
    """A broker with a worker that serves the model of the examples; yields its address."""
    with Worker(embedded_url, models=ROOT / "models", model="road-small"):
        yield embedded_url


def run_example(name: str, *arguments: str | Path) -> str:
    """Runs a program of `examples/`; returns what it printed."""
    (program,) = (EXAMPLES / name).glob("*.py")
    ended = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=WAIT_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_programs_of_the_page_run(
    served: str, drive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are run in their order, as a reader would in a notebook; only the address of the broker is another."""
    monkeypatch.chdir(drive.parent)
    for name in ("demo", "again"):
        settings = {"broker": served, "model": "road-small", "closed_loop": True}
        assert len(list(skylane.play(drive, out=Path("runs", name), **settings))) == FRAMES
    assert len(PROGRAMS) >= 7
    names: dict[str, Any] = {}
    for program in PROGRAMS:
        exec(program.replace('model="road-small", ', f'model="road-small", broker="{served}", '), names)
    assert names["mask"].shape == names["image"].shape[:2]
    assert len(names["stages"].index.levels[0]) == 2
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("answered", "total_ms", "uplink", "again", "(608, 968, 3) (608, 968)"))


def test_the_client_of_the_protocol_page_gets_a_mask(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page alone is enough to write a client: it imports nothing of Skylane."""
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "skylane" not in {line.split()[1] for line in program.splitlines() if line.startswith(("import", "from"))}
    port = served.rpartition(":")[2]
    names: dict[str, Any] = {}
    exec(program.replace("1883", port), names)
    with skylane.Model("road-small", models=ROOT / "models") as model:
        np.testing.assert_array_equal(names["mask"], model.predict(names["image"], mask_size="model"))
    pixels = [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert sum(pixels) == names["mask"].size


def test_a_program_acts_on_the_outputs_of_now(served: str, drive: Path) -> None:
    """One line for each frame."""
    assert run_example("outputs", drive, served).count("\nframe ") == FRAMES - 1


def test_a_model_runs_on_a_bag(drive: Path) -> None:
    """One line for each frame, and the most common classes."""
    lines = run_example("model_on_bag", drive).splitlines()
    assert len(lines) == FRAMES + 5
    assert lines[0].startswith("/")
    assert lines[-1].endswith(" %")


def test_the_shares_of_labels_are_printed(tmp_path: Path) -> None:
    """From the table of a batch."""
    table = {"bag": ["a.mcap", "a.mcap"], "share_road": [0.25, 0.75], "share_sky": [0.5, 0.1]}
    pd.DataFrame(table).to_parquet(tmp_path / "frames.parquet")
    assert run_example("label_shares", tmp_path).split()[-3:] == ["2", "50.0", "30.0"]


def test_the_moment_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the presenters of a vehicle, and the benches of a checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run_example("same_moment", tmp_path / "moment.jpg")
    picture = cv2.imread(str(tmp_path / "moment.jpg"))
    assert picture is not None
    assert picture.shape[1] > 1000


def test_the_plug_in_writes_its_table(
    served: str, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheel is installed beside Skylane, and the command line finds it."""
    site = install(EXAMPLES / "sink_plugin", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(ROOT))))
    flags = ("--broker", served, "--sink", "shares", "--closed-loop", "--out", tmp_path / "run")
    command: list[str | Path] = [sys.executable, "-P", "-m", "skylane", "edge", "play", drive, *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stderr
    shares = pd.read_csv(tmp_path / "run" / "shares.csv")
    assert shares["index"].tolist() == list(range(FRAMES))
    assert shares.drop(columns=["camera", "index"]).sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-4)
    assert shares["road"].mean() > 0.1


def test_every_example_is_explained() -> None:
    """Each folder has one program and a page."""
    folders = [path for path in EXAMPLES.iterdir() if path.is_dir()]
    assert len(folders) >= 4
    for folder in folders:
        assert (folder / "README.md").read_text().startswith("# ")
        assert len([*folder.glob("*.py")]) == 1
