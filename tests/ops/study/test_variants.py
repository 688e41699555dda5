import subprocess
from pathlib import Path
from shutil import copytree

import pytest

from analysis.study.study_plan import WorkerSetup
from modelling.conversion.convert_cli import quantize
from ops.study.variants import ModelMissingError, ModelVariant, ModelVariants
from shared.errors import SkylaneError
from shared.models.repository import MODELS_VARIABLE, Repository

MODELS = Path(__file__).parents[3] / "models"


def _setup(**changes: object) -> WorkerSetup:
    values = {
        "model": "road-small",
        "engine": "tensorflow",
        "format": "own",
        "precision": "fp32",
        "device": "cpu",
        "batch": 1,
        "workers": 1,
        "fixed_inference_ms": None,
        "cold": "",
    }
    return WorkerSetup(**(values | changes))  # type: ignore[arg-type]  # The values have the right types.


def test_a_suitable_model_is_used_from_the_repository(tmp_path: Path) -> None:
    """The study measures the included file itself."""
    assert ModelVariants(MODELS, tmp_path).find(_setup()) == ModelVariant(MODELS, "road-small")
    assert not list(tmp_path.iterdir())


def test_another_format_is_built_once_from_the_same_weights(tmp_path: Path) -> None:
    """With other weights, the formats would be different models."""
    variants = ModelVariants(MODELS, tmp_path)
    setup = _setup(model="road-weather", format="saved_model", batch=4)
    variant = variants.find(setup)
    assert variant == ModelVariant(tmp_path, "road-weather-saved_model-batched")
    built = tmp_path / variant.name / "model.yaml"
    written_ns = built.stat().st_mtime_ns
    assert variants.find(setup) == variant
    assert built.stat().st_mtime_ns == written_ns
    assert Repository(tmp_path).find(variant.name).labels() == Repository(MODELS).find("road-weather").labels()


def test_the_error_for_a_missing_model_has_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command contains --models if the repository is not the default one."""
    message = r"model 'road-large' is not built in .*: run 'skylane model build road-large --models {}', then the study"
    with pytest.raises(ModelMissingError, match=message.format(tmp_path)):
        ModelVariants(tmp_path, tmp_path / "built").find(_setup(model="road-large"))
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path))
    with pytest.raises(ModelMissingError, match="run 'skylane model build road-large', then the study again"):
        ModelVariants(tmp_path, tmp_path / "built").find(_setup(model="road-large"))


def test_a_quantised_model_is_made_from_a_copy_of_the_users_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is parsed by the real `skylane model quantize`; quantising itself would take minutes."""
    models, built, commands = tmp_path / "models", tmp_path / "built", []
    copytree(MODELS / "road-weather", models / "mine")
    manifest = models / "mine" / "model.yaml"
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace("name: road-weather", "name: mine"), encoding="utf-8"
    )
    built.mkdir()

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    variant = ModelVariants(models, built).find(_setup(model="mine", engine="openvino", precision="int8"))
    assert variant == ModelVariant(built, "mine-int8")
    assert Repository(built).names() == ("mine",)
    (command,) = commands
    given = quantize.make_context("quantize", command[command.index("quantize") + 1 :]).params
    assert (given["name"], given["precision"], given["new_name"]) == ("mine", "int8", "mine-int8")
    assert given["repository"].root == built


def test_an_engine_that_cannot_read_quantised_models_is_rejected(tmp_path: Path) -> None:
    """Otherwise the worker would fail with the file of another engine."""
    with pytest.raises(ModelMissingError, match="engine tensorflow cannot read quantised models"):
        ModelVariants(MODELS, tmp_path).find(_setup(precision="int8"))
    with pytest.raises(ModelMissingError, match="engine tensorflow cannot read quantised models"):
        ModelVariants(MODELS, tmp_path).find(_setup(engine=None, precision="int8"))


def test_engine_and_precision_are_the_models_by_default(tmp_path: Path) -> None:
    """A study of a TFLite file needs no further axes, and the engine in a manifest is a choice of its owner."""
    variants = ModelVariants(MODELS, tmp_path, makes_missing=False)
    assert variants.try_open(_setup(model="road-tiny", engine=None, precision=None)) == "tflite fp16"
    assert variants.try_open(_setup(engine=None, precision=None), "road-tiny") == "tensorflow fp32"
    copytree(MODELS / "road-weather", tmp_path / "mine" / "road-weather")
    manifest = tmp_path / "mine" / "road-weather" / "model.yaml"
    manifest.write_text(f"{manifest.read_text(encoding='utf-8')}engine: openvino\n", encoding="utf-8")
    variants = ModelVariants(tmp_path / "mine", tmp_path, makes_missing=False)
    assert variants.try_open(_setup(model="road-weather", engine=None, precision=None)) == "openvino fp32"
    assert variants.engine(_setup(model="road-weather", engine="tensorflow")) == "tensorflow"


def test_a_trial_makes_no_model(tmp_path: Path) -> None:
    """A dry run writes nothing; of models that are made first, it loads the engine."""
    variants = ModelVariants(MODELS, tmp_path, makes_missing=False)
    setup = _setup(engine=None, format="saved_model", precision=None)
    assert variants.try_open(setup) == "tensorflow fp32"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "tensorflow", "precision": None}, "is fp16 tflite, from which no fp16 frozen_graph can be made"),
        ({"engine": None, "precision": "fp32"}, "fp32"),
        ({"engine": None, "precision": None, "format": "onnx"}, "from which no fp16 onnx can be made"),
        ({"engine": "onnxruntime", "format": "tflite"}, "engine onnxruntime cannot read tflite"),
    ],
)
def test_a_trial_says_why_a_cell_cannot_run(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    """The file of a shipped TFLite model has no weights from which another format could be written."""
    variants = ModelVariants(MODELS, tmp_path, makes_missing=False)
    with pytest.raises(SkylaneError, match=message):
        variants.try_open(_setup(model="road-tiny", **changes))


def test_missing_local_models_are_reported_with_the_others(tmp_path: Path) -> None:
    """Vehicles would fail in the middle of the study."""
    variants = ModelVariants(tmp_path / "models", tmp_path / "built")
    with pytest.raises(ModelMissingError, match="models 'road-small', 'street-lite' are not built in"):
        variants.check([_setup()], ["street-lite"])
    assert variants.root == tmp_path / "models"
