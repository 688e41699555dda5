"""The real parts of a session: models, devices, footage and vehicles."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.study.cell import WorkerSetup
from bench.study.cli import study
from bench.study.devices import missing
from bench.study.fleet import Fleet, RunError
from bench.study.footage import footage
from bench.study.scenarios import Footage
from bench.study.variants import ModelMissingError, Variant, Variants
from cloud.repository import Repository
from shared.config import ConfigError
from shared.pictures import read_picture
from tests.bench.study.rig import plan_file

MODELS = Path(__file__).parents[3] / "models"


def _setup(**changes: object) -> WorkerSetup:
    known = {
        "model": "road-small",
        "engine": "tensorflow",
        "format": "own",
        "precision": "fp32",
        "device": "cpu",
        "batch": 1,
        "workers": 1,
        "cold": "",
    }
    return WorkerSetup(**(known | changes))  # type: ignore[arg-type]  # As the test says.


def test_a_model_is_served_as_it_lies_where_that_is_what_the_cell_wants(tmp_path: Path) -> None:
    """What is measured is then the very file that ships."""
    assert Variants(MODELS, tmp_path).find(_setup()) == Variant(MODELS, "road-small")
    assert not list(tmp_path.iterdir())


def test_another_format_is_built_once_from_the_same_weights(tmp_path: Path) -> None:
    """Otherwise two formats would be two models."""
    variants = Variants(MODELS, tmp_path)
    variant = variants.find(_setup(format="saved_model", batch=4))
    assert variant == Variant(tmp_path, "road-small-saved_model-batched")
    built = tmp_path / variant.name / "model.yaml"
    written_ns = built.stat().st_mtime_ns
    assert variants.find(_setup(format="saved_model", batch=4)) == variant
    assert built.stat().st_mtime_ns == written_ns
    assert Repository(tmp_path).labels(variant.name, Repository(tmp_path).manifest(variant.name)) == Repository(
        MODELS
    ).labels("road-small", Repository(MODELS).manifest("road-small"))


def test_a_model_that_is_not_built_names_the_command_that_builds_it(tmp_path: Path) -> None:
    """The other cells go on; this one's reason must be enough to mend it."""
    with pytest.raises(ModelMissingError, match="run 'skylane model build road-large', then the study again"):
        Variants(MODELS, tmp_path).find(_setup(model="road-large"))


def test_a_device_that_is_missing_is_told_with_its_reason() -> None:
    """The CPU needs no TensorFlow to be found; of a GPU TensorFlow knows best."""
    assert missing(["cpu"]) == {}
    absent = missing(["cpu", "gpu:99"])
    assert absent.keys() == {"gpu:99"}
    assert absent["gpu:99"].startswith("device 'gpu:99': ")


def test_mixed_sizes_are_pictures_of_several_sizes_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One size would be another scenario."""
    monkeypatch.chdir(tmp_path)
    folder = footage(Footage.MIXED, "64x48", 6)
    sizes = [read_picture(path).shape[:2] for path in sorted(folder.iterdir())]
    assert sizes == [(48, 64), (36, 48), (24, 32), (30, 64), (48, 32), (48, 64)]
    assert footage(Footage.MIXED, "64x48", 6) == folder
    assert footage(Footage.ONE, "64x48", 6) != footage(Footage.DRIVE, "64x48", 6)


def test_a_vehicle_that_fails_tells_its_last_words(tmp_path: Path) -> None:
    """They are the reason in the table of runs."""
    flags = [["--broker", "mqtt://127.0.0.1:1"]]
    with Fleet(1, tmp_path / "nowhere", tmp_path, flags) as fleet, pytest.raises(RunError) as caught:
        fleet.wait(60)
    assert str(caught.value).startswith(f"vehicle-1 failed with exit code 1: {tmp_path / 'nowhere'} does not exist")


def test_vehicles_that_take_too_long_are_ended(tmp_path: Path) -> None:
    """A study must not hang on one run for the night."""
    flags = [["--broker", "mqtt://127.0.0.1:1", "--frames", "1"]] * 2
    source = tmp_path / "pictures"
    source.mkdir()
    (source / "a.png").write_bytes(b"")
    with Fleet(2, source, tmp_path, flags) as fleet, pytest.raises(RunError, match=r"longer than run_limit_s, 0\.01 s"):
        fleet.wait(0.01)
    assert [process.poll() is not None for process in fleet._processes.values()] == [True, True]


def test_a_dry_run_shows_the_order_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours are planned by it."""
    file = plan_file(tmp_path, axes={"codec": ["jpeg", "raw"]}, repetitions=2)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(study, ["run", file.name, "--dry-run", "--models", str(MODELS)])
    assert shown.exit_code == 0, shown.output
    assert "4 runs in their order" in shown.stdout
    assert list(tmp_path.iterdir()) == [file]


def test_the_list_names_every_axis_and_what_it_can_be() -> None:
    """It is where a user starts to write a file."""
    shown = CliRunner().invoke(study, ["list"]).stdout
    for word in ("transport", "road-large", "saved_model", "jpeg-N", "capacity_vehicles", "4g"):
        assert word in shown


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The front door prints it and ends with 1."""
    with pytest.raises(ConfigError, match="cannot be read"):
        CliRunner().invoke(study, ["run", str(tmp_path / "no.yaml")], catch_exceptions=False)
