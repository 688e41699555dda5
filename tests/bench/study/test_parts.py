"""The real parts of a session: models, devices, footage and vehicles."""

import re
import subprocess
from pathlib import Path
from shutil import copytree

import pytest
from click.testing import CliRunner

from bench.study.cli import study
from bench.study.execution.fleet import Fleet, RunError
from bench.study.execution.gateway_addresses import Doors, are_wanted
from bench.study.execution.runner import Runner
from bench.study.plan.cell import WorkerSetup
from bench.study.plan.devices import missing
from bench.study.plan.sample_drives import footage
from bench.study.plan.scenarios import Footage
from bench.study.plan.study_plan import cells
from bench.study.plan.variants import ModelMissingError, Variant, Variants
from bench.study.results.folder import StudyFolder
from bench.study.results.provenance import begun
from cloud.models.repository import MODELS_VARIABLE, Repository
from modelling.quantization.quantize_cli import quantize
from shared.config import ConfigError
from shared.imaging.image_files import read_image_file
from tests.support.simulated_study import plan_file, plan_of

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


def test_a_model_that_is_not_built_names_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the repository that is looked in, which a user may have named."""
    told = r"model 'road-large' is not built in .*: run 'skylane model build road-large --models {}', then the study"
    with pytest.raises(ModelMissingError, match=told.format(tmp_path)):
        Variants(tmp_path, tmp_path / "built").find(_setup(model="road-large"))
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path))
    with pytest.raises(ModelMissingError, match="run 'skylane model build road-large', then the study again"):
        Variants(tmp_path, tmp_path / "built").find(_setup(model="road-large"))


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_study_without_its_models_fails_before_anything_starts_and_names_them_all(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cell by cell they would be found out over an hour, one message each."""
    models, out = tmp_path / "models", tmp_path / "study"
    copytree(MODELS / "road-weather", models / "road-weather")
    file = plan_file(tmp_path, axes={"model": ["road-weather", "street-lite", "road-large"], "codec": ["raw", "jpeg"]})
    monkeypatch.chdir(tmp_path)
    arguments = ["run", str(file), "--models", str(models), "--out", str(out), *more]
    with pytest.raises(ModelMissingError) as caught:
        CliRunner().invoke(study, arguments, catch_exceptions=False)
    assert str(caught.value) == (
        f"models 'road-large', 'street-lite' are not built in {models}: run 'skylane model build road-large street-lite "
        f"--models {models}', then the study again"
    )
    assert not [*out.glob("**/*")]


def test_a_quantised_model_is_made_by_a_command_that_exists_from_the_model_as_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network whose weights do not ship has no others than those in its file; and quantising takes minutes, here not."""
    models, built, ran = tmp_path / "models", tmp_path / "built", []
    copytree(MODELS / "road-weather", models / "mine")
    manifest = models / "mine" / "model.yaml"
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace("name: road-weather", "name: mine"), encoding="utf-8"
    )
    built.mkdir()

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    variant = Variants(models, built).find(_setup(model="mine", engine="openvino", precision="int8"))
    assert variant == Variant(built, "mine-int8")
    assert Repository(built).names() == ("mine",)
    (command,) = ran
    given = quantize.make_context("quantize", command[command.index("quantize") + 1 :]).params
    assert (given["name"], given["precision"], given["called"], given["root"]) == ("mine", "int8", "mine-int8", built)


def test_an_engine_that_reads_no_quantised_model_is_told_the_one_that_does(tmp_path: Path) -> None:
    """It would be given another engine's file, and fail in its words."""
    with pytest.raises(ModelMissingError, match="engine tensorflow reads no quantised models"):
        Variants(MODELS, tmp_path).find(_setup(precision="int8"))


def test_doors_are_opened_where_a_cell_comes_in_by_them(tmp_path: Path) -> None:
    """And not else: what is measured by MQTT alone must be the worker that MQTT alone needs."""
    planned = cells(
        plan_of(
            tmp_path,
            axes={"transport": ["mqtt", "oip-rest"], "engine": ["tensorflow", "openvino"]},
            exclude=[{"transport": "oip-rest", "engine": "openvino"}],
        )
    )
    assert {cell.engine: are_wanted(cell.setup, planned) for cell in planned} == {"tensorflow": True, "openvino": False}
    doors = Doors(1, 2)
    assert [doors.port(transport) for transport in ("grpc", "tfs-grpc", "oip-grpc", "oip-rest", "tfs-rest")] == [
        1,
        1,
        1,
        2,
        2,
    ]


def test_no_two_doors_of_a_session_are_at_one_port() -> None:
    """Asked for one after the other, the same port comes twice now and then: that worker would fail its whole session."""
    doors = Doors.free(200)
    assert len({port for each in doors for port in (each.grpc, each.http)}) == 2 * len(doors) == 400


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
    sizes = [read_image_file(path).shape[:2] for path in sorted(folder.iterdir())]
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


def test_a_study_that_ships_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who installed the wheel has no folder `configs`; a file of one's own of that name comes first."""
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(study, ["run", "quick", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    (tmp_path / "quick").write_text("neither: a study\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="neither"):
        CliRunner().invoke(study, ["run", "quick", "--dry-run"], catch_exceptions=False)


def test_a_dry_run_shows_the_order_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours are planned by it."""
    file = plan_file(tmp_path, axes={"codec": ["jpeg", "raw"]}, repetitions=2)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(study, ["run", file.name, "--dry-run", "--models", str(MODELS)])
    assert shown.exit_code == 0, shown.output
    assert "4 runs in their order" in shown.stdout
    assert list(tmp_path.iterdir()) == [file]


_ROW = re.compile(r"^│\s*(\d+)\s*│\s*(\d+)\s*│\s*(\S+)", re.MULTILINE)


def _shown_order(file: Path, *flags: str) -> tuple[str, list[tuple[str, ...]]]:
    """What a dry run prints, and its rows: order, repetition and cell."""
    shown = CliRunner().invoke(study, ["run", file.name, "--dry-run", "--models", str(MODELS), *flags])
    assert shown.exit_code == 0, shown.output
    return shown.stdout, _ROW.findall(shown.stdout)


def test_a_dry_run_shows_the_order_in_which_the_run_of_its_seed_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to draw a seed of its own and to show the order of a run that nobody would make."""
    settings = {"axes": {"codec": ["jpeg", "raw"], "vehicles": [1, 2]}, "repetitions": 3}
    file, plan = plan_file(tmp_path, **settings), plan_of(tmp_path, **settings)
    monkeypatch.chdir(tmp_path)
    said, rows = _shown_order(file)
    (seed,) = re.findall(r"in this order with --seed (\d+)", said)

    def order(of_seed: int) -> list[tuple[str, ...]]:
        planned = Runner(plan, StudyFolder(tmp_path / "study"), of_seed).planned
        return [(str(run.order), str(run.repetition), run.cell.name) for run in planned]

    assert rows == order(int(seed))
    folder = StudyFolder(tmp_path / "study")
    folder.begin(plan, begun(plan, file, 8, 12))
    said, rows = _shown_order(file, "--out", "study")
    assert rows == order(8)
    assert "--seed" not in said


def test_the_list_names_every_axis_and_what_it_can_be() -> None:
    """It is where a user starts to write a file."""
    shown = CliRunner().invoke(study, ["list"]).stdout
    for word in ("transport", "road-large", "saved_model", "jpeg-N", "capacity_vehicles", "4g"):
        assert word in shown


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The front door prints it and ends with 1."""
    with pytest.raises(ConfigError, match="cannot be read"):
        CliRunner().invoke(study, ["run", str(tmp_path / "no.yaml")], catch_exceptions=False)
