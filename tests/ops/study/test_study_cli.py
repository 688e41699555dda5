import re
from pathlib import Path
from shutil import copytree

import pytest
import yaml
from click.testing import CliRunner

from analysis.study.study_folder import StudyFolder, initial_manifest
from ops.study.cli import study
from ops.study.runner import StudyRunner
from ops.study.variants import ModelMissingError
from shared.config import ConfigError
from shared.errors import SkylaneError
from tests.support.simulated_study import plan_file, plan_of

MODELS = Path(__file__).parents[3] / "models"
CONFIGS = MODELS.parent / "configs" / "studies"
_ROW = re.compile(r"^│\s*(\d+)\s*│\s*(\d+)\s*│\s*(\S+)", re.MULTILINE)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_missing_models_are_reported_together_before_the_first_run(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each cell would fail with its own message during the study."""
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


def test_an_included_study_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package has no folder `configs`; a file of the user with this name takes precedence."""
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(study, ["run", "quick", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    (tmp_path / "quick").write_text("neither: a study\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="neither"):
        CliRunner().invoke(study, ["run", "quick", "--dry-run"], catch_exceptions=False)


def _dry_run(file: Path, *flags: str) -> tuple[str, list[tuple[str, ...]]]:
    """Returns the output of a dry run, and its rows of order, repetition and cell."""
    shown = CliRunner().invoke(study, ["run", file.name, "--dry-run", "--models", str(MODELS), *flags])
    assert shown.exit_code == 0, shown.output
    return shown.stdout, _ROW.findall(shown.stdout)


def test_a_dry_run_shows_the_runs_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user can estimate the duration of a study from it."""
    file = plan_file(tmp_path, axes={"codec": ["jpeg", "raw"]}, repetitions=2)
    monkeypatch.chdir(tmp_path)
    output, _ = _dry_run(file)
    assert "4 runs in their order" in output
    assert list(tmp_path.iterdir()) == [file]


def test_a_dry_run_names_the_cells_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of them would fail in the middle of the study; its exit code is that of the study."""
    file = plan_file(tmp_path, axes={"model": "road-tiny", "engine": [None, "tensorflow"]}, repetitions=1)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(study, ["run", file.name, "--dry-run", "--models", str(MODELS)])
    assert shown.exit_code == 1
    assert "tflite fp16" in shown.stdout
    assert "\ntensorflow: cannot run: model 'road-tiny' is fp16 tflite" in shown.stdout
    assert "default-engine: cannot run" not in shown.stdout
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["accuracy", "capacity", "presenters", "scenarios", "vehicle-link"])
def test_shipped_studies_run_with_a_model_of_another_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is often the first thing that a user changes in a copy of a study."""
    document = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    document["axes"]["model"] = "road-tiny"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(study, ["run", "mine.yaml", "--dry-run", "--models", str(MODELS)])
    assert (shown.exit_code, "cannot run" in shown.stdout) == (0, False)


def test_a_dry_run_shows_the_order_of_a_run_with_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new study shows the seed of this order; a study to resume has its own seed."""
    settings = {"axes": {"codec": ["jpeg", "raw"], "vehicles": [1, 2]}, "repetitions": 3}
    file, plan = plan_file(tmp_path, **settings), plan_of(tmp_path, **settings)
    monkeypatch.chdir(tmp_path)
    output, rows = _dry_run(file)
    (shown_seed,) = re.findall(r"use --seed (\d+) for this order", output)

    def order(seed: int) -> list[tuple[str, ...]]:
        planned = StudyRunner(plan, StudyFolder(tmp_path / "study"), seed).planned
        return [(str(run.order), str(run.repetition), run.cell.name) for run in planned]

    assert rows == order(int(shown_seed))
    folder = StudyFolder(tmp_path / "study")
    folder.begin(plan, initial_manifest(plan, file, 8, 12))
    output, rows = _dry_run(file, "--out", "study")
    assert rows == order(8)
    assert "--seed" not in output


def test_the_list_has_every_axis_with_its_valid_values() -> None:
    """Users look here before they write a file."""
    shown = CliRunner().invoke(study, ["list"]).stdout
    for word in ("transport", "road-large", "saved_model", "jpeg-N", "capacity_vehicles", "4g"):
        assert word in shown


def test_a_mistyped_study_gets_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, the user would look for a file that never existed."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkylaneError, match=r"no file or included study 'quikc': did you mean quick\?"):
        CliRunner().invoke(study, ["run", "quikc"], catch_exceptions=False)
    with pytest.raises(SkylaneError, match="no file or included study 'mine': choose one of accuracy, capacity"):
        CliRunner().invoke(study, ["run", "mine"], catch_exceptions=False)
