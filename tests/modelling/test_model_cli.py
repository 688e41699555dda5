import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cloud.engines.tensorflow.runtime import tf
from modelling.model_cli import model
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.image_files import read_image_file, write_png

_HEIGHT, _WIDTH = 40, 60


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(model, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one untrained model, which predicts class 1 for bright pixels."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        tf.cast(images[..., 0] > 100, tf.uint8, name="prediction")
    path = tmp_path / "bright.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    (tmp_path / "labels.yaml").write_text("- {name: dark, colour: [0, 0, 0]}\n- {name: light, colour: [0, 255, 0]}\n")
    folder = tmp_path / "models" / "bright"
    assert "wrote" in _run("inspect", path, "--write", folder, "--labels", tmp_path / "labels.yaml").stdout
    manifest = folder / "model.yaml"
    manifest.write_text(manifest.read_text().replace("trained: true", "trained: false"))
    return tmp_path / "models"


def test_inspect_prints_findings_guesses_and_the_manifest(models: Path) -> None:
    """Without --write, it writes no file."""
    result = _run("inspect", models / "bright" / "bright.pb")
    assert "input:0 uint8 1×40×60×3" in result.stdout
    assert "prediction:0 uint8 1×40×60, class_ids" in result.stdout
    assert "· the input has a fixed batch size of 1" in result.stdout
    assert "output: {tensor: 'prediction:0', kind: class_ids}" in result.stdout


def test_list_checks_each_models_file(models: Path) -> None:
    """A broken manifest or a wrong hash appears in the model's line."""
    (models / "broken").mkdir()
    (models / "broken" / "model.yaml").write_text("fromat: x\n")
    (row, broken) = json.loads(_run("list", "--models", models, "--json").stdout)
    assert (row["name"], row["input"], row["classes"], row["trained"], row["file"]) == (
        "bright",
        "40×60 rgb8",
        2,
        False,
        "ok",
    )
    assert "fromat: unknown key" in broken["file"]
    assert "ok, untrained" in _run("list", "--models", models).stdout
    (models / "bright" / "bright.pb").write_bytes(b"")
    (row, _) = json.loads(_run("list", "--models", models, "--json").stdout)
    assert "has SHA-256 e3b0c44298fc…" in row["file"]


def test_list_recommends_a_build_for_an_empty_repository(tmp_path: Path) -> None:
    """A new user needs the command."""
    assert "skylane model build road-small" in _run("list", "--models", tmp_path).stdout


def test_run_writes_ids_colours_and_overlay_at_the_images_size(models: Path, tmp_path: Path) -> None:
    """Images of an untrained model are stamped, but not the class ids."""
    image = np.zeros((2 * _HEIGHT, 2 * _WIDTH, 3), np.uint8)
    image[:, _WIDTH:] = 255
    write_png(tmp_path / "street.png", image)
    result = _run("run", "bright", tmp_path / "street.png", "--models", models, "--out", tmp_path / "out")
    assert "untrained weights" in result.stdout
    assert "50.0%" in result.stdout
    ids = read_image_file(tmp_path / "out" / "street_ids.png")[..., 0]
    np.testing.assert_array_equal(ids, image[..., 0] > 0)
    colour = read_image_file(tmp_path / "out" / "street_colour.png")
    assert colour[-1, -1].tolist() == [0, 255, 0]
    assert colour[: _HEIGHT // 2, : _WIDTH // 2].any(), "the stamp is on the dark half"
    assert read_image_file(tmp_path / "out" / "street_overlay.png")[-1, -1].tolist() == [128, 255, 128]


def test_evaluate_prints_a_table_or_json(models: Path, tmp_path: Path) -> None:
    """The model's masks equal the bag's labels."""
    mosaic = np.zeros((2 * _HEIGHT, 2 * _WIDTH), np.uint8)
    mosaic[:, _WIDTH:] = 255
    with BagWriter(tmp_path / "bag") as writer:
        for stamp_ns in (1, 2):
            writer.write_image("/cam/image_raw", mosaic, "bayer_rggb8", stamp_ns, stamp_ns, "cam")
            writer.write_image("/cam/labels", mosaic // 255, "mono8", stamp_ns, stamp_ns, "cam")
    document = json.loads(_run("evaluate", "bright", tmp_path / "bag", "--models", models, "--json").stdout)
    assert (document["mean_iou"], document["frames"], document["trained"]) == (1.0, 2, False)
    output = _run("evaluate", "bright", tmp_path / "bag", "--models", models, "--frames", 1).stdout
    assert "mean IoU 1.0000" in output
    assert "1 frames" in output
    assert "(untrained weights)" in output


def test_an_unknown_model_is_an_error_with_the_nearest_name(models: Path, tmp_path: Path) -> None:
    """The `skylane` command prints it as one line and exits with 1."""
    write_png(tmp_path / "street.png", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(SkylaneError, match="no model 'brigt': did you mean bright"):
        _run("run", "brigt", tmp_path / "street.png", "--models", models)


@pytest.mark.parametrize("size", ["608", "0x10", "axb", "10x"])
def test_an_invalid_size_is_a_usage_error(models: Path, size: str) -> None:
    """The exit code is 2, and the error shows the format."""
    result = _run("inspect", models / "bright" / "bright.pb", "--size", size)
    assert result.exit_code == 2
    assert "write height, x, width, as 608x968" in result.stderr


def test_build_refuses_impossible_requests(tmp_path: Path) -> None:
    """Missing weights are an error with a remedy; unknown names and contradictory options are usage errors."""
    with pytest.raises(SkylaneError, match=r"no weights for road-small: .* `python -m training` in a checkout"):
        _run("build", "road-small", "--models", tmp_path)
    assert _run("build", "road-smal").exit_code == 2
    moved = _run("build", "road-small", "--train", "--minutes", "5").stderr
    assert "run `python -m training road-small --minutes 5` in a checkout" in moved
    assert "give --format, and one NAME" in _run("build", "road-small", "--name", "mine").stderr
    with pytest.raises(SkylaneError, match="model 'no/name' is not allowed"):
        _run("build", "road-large", "--format", "keras", "--name", "no/name", "--models", tmp_path)
