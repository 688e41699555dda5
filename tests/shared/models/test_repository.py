import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.engine import TensorFlowEngine
from cloud.engines.tensorflow.runtime import tf
from shared import registry
from shared.config import ConfigError, read_yaml
from shared.errors import SkylaneError, UnknownNameError
from shared.files import tree_sha256
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.models.manifest import OutputKind, OutputSection
from shared.models.repository import Repository, default_root
from shared.task import CONFIDENCE_HEAD


def _graph(workshop: Any) -> Any:
    return workshop.graph(lambda scores: tf.argmax(scores, -1))


def test_names_are_the_folders_with_a_manifest(workshop: Any) -> None:
    """Other folders and files are ignored."""
    workshop.add("b", b"")
    workshop.add("a", b"")
    (workshop.root / "unfinished").mkdir()
    (workshop.root / "README.md").write_text("")
    assert workshop.repository.names() == ("a", "b")


def test_an_unknown_model_is_an_error_with_a_suggestion(workshop: Any) -> None:
    """Names are untrusted and must not lead out of the repository."""
    workshop.add("road-small", b"")
    with pytest.raises(UnknownNameError, match="no model 'road-smal': did you mean road-small"):
        workshop.open("road-smal")
    for name in ("../road-small", ".", "", str(workshop.root / "road-small")):
        with pytest.raises(UnknownNameError):
            workshop.open(name)


def test_a_card_is_made_from_the_manifest(workshop: Any) -> None:
    """The model file may be missing."""
    folder = workshop.add(
        "m",
        b"",
        version=3,
        trained=False,
        input={"layout": "bgr8", "resize": "letterbox"},
        labels=[{"name": "road", "colour": [1, 2, 3]}],
    )
    (folder / "model.pb").unlink()
    card = workshop.repository.find("m").card()
    assert (card.name, card.version, card.trained, card.task) == ("m", "3", False, "segmentation")
    assert (card.height, card.width, card.layout, card.resize) == (8, 12, Layout.BGR8, Resize.LETTERBOX)
    assert (card.labels.names, card.labels.colours) == (("road",), ((1, 2, 3),))


def test_a_manifest_is_read_again_only_if_it_was_changed(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing many models would take seconds."""
    folder = workshop.add("m", b"", version=3)
    read: list[Path] = []

    def counted(path: Path, *more: Any) -> Any:
        read.append(path)
        return read_yaml(path, *more)

    monkeypatch.setattr("shared.models.repository.read_yaml", counted)
    repository = Repository(workshop.root)
    assert [repository.find("m").card().version for _ in range(3)] == ["3"] * 3
    assert len(read) == 1
    changed = folder / "changed.yaml"
    changed.write_text((folder / "model.yaml").read_text().replace("version: 3", "version: 4"))
    changed.rename(folder / "model.yaml")
    assert repository.find("m").card().version == "4"


def test_a_label_file_must_be_in_the_repository(workshop: Any) -> None:
    """A container mounts only the repository."""
    (workshop.root / "street.yaml").write_text("- {name: road, colour: [1, 2, 3]}\n")
    workshop.add("m", b"", labels=[], labels_file="../street.yaml")
    assert workshop.repository.find("m").card().labels.names == ("road",)
    workshop.add("outside", b"", labels=[], labels_file="../../street.yaml")
    with pytest.raises(ConfigError, match=r"labels_file: '../../street\.yaml' is outside the repository"):
        workshop.repository.find("outside").card()


@pytest.mark.parametrize("engine", ["tensorflow", "openvino"])
def test_labels_of_a_file_must_cover_the_classes(workshop: Any, engine: str) -> None:
    """The same check applies to labels in the manifest."""
    (workshop.root / "street.yaml").write_text("- {name: road, colour: [1, 2, 3]}\n")
    graph = workshop.graph(lambda scores: scores)
    workshop.add("m", graph, labels=[], labels_file="../street.yaml", output={"kind": "scores"})
    with pytest.raises(SkylaneError, match="gives 5 scores where the manifest has 1 labels"):
        workshop.open("m", engine=engine)


def test_a_class_without_a_name_is_found_by_the_warm_up(workshop: Any) -> None:
    """If the graph has the arg max, only a run shows the number of classes."""
    labels = [{"name": "road", "colour": [1, 2, 3]}]
    graph = workshop.graph(lambda scores: tf.ones_like(tf.argmax(scores, -1)))
    workshop.add("m", graph, labels=labels)
    with (
        workshop.open("m") as model,
        pytest.raises(SkylaneError, match="m answers class 1, but names only 1: name all classes in labels"),
    ):
        model.warm_up()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (tf.reduce_mean, "'mean' is a single number for 1 images"),
        (tf.as_string, "is string: only numbers can be sent"),
    ],
)
def test_an_unsupported_tensor_is_an_error_at_load(workshop: Any, answer: Any, problem: str) -> None:
    """Otherwise the first vehicle would find it."""
    outputs = {"mean": {"tensor": "prediction:0", "kind": "tensor"}}
    workshop.add("m", workshop.graph(answer), task="tensors", outputs=outputs, output=None)
    with pytest.raises(SkylaneError, match=problem), workshop.open("m") as model:
        model.warm_up()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input": {"hieght": 3}}, r"m/model\.yaml: input\.hieght: unknown key: did you mean height\?"),
        ({"fromat": "frozen_graph"}, "fromat: unknown key: did you mean format"),
        ({"name": "n"}, "name: is 'n', but the folder is 'm'"),
        ({"sha256": "abc"}, "sha256: "),
        ({"file": "../model.pb"}, "file: .*inside the model's folder"),
        ({"file": "/etc/passwd"}, "file: .*inside the model's folder"),
        ({"input": {"layout": "mono8"}}, "input.layout: .*use rgb8 or bgr8"),
        ({"input": {"dtype": "uint8", "scale": 0.5}}, "input: scale, mean and std need a float dtype"),
        ({"input": {"std": [1, 0, 1]}}, "input: std must not be 0"),
        ({"output": {"kind": "boxes"}}, "output.kind: |output mask: kind boxes"),
        ({"labels": []}, "give either labels, a list of {name, colour}, or labels_file"),
        ({"labels_file": "x"}, "give either labels"),
        (
            {"labels": [{"name": "a", "colour": [0, 0, 0]}, {"name": "a", "colour": [0, 0, 0]}]},
            "'a' is the name of several classes",
        ),
        ({"labels": [{"name": "a", "colour": [0, 0, 256]}]}, r"labels\.0\.colour\.2: .*255"),
        ({"labels": [{"name": "a", "colour": [0, 0, 0]} for _ in range(1025)]}, "labels: .*at most 1024"),
        (
            {"task": "classification", "output": {"kind": "logits"}, "confidence": "scores:0"},
            "confidence is the key of a segmentation, not of classification: remove it",
        ),
    ],
)
def test_a_wrong_manifest_names_the_key(workshop: Any, changes: dict[str, Any], problem: str) -> None:
    """A model.yaml is written by hand as often as by `model inspect`."""
    folder = workshop.add("m", b"", **{key: value for key, value in changes.items() if key != "file"})
    if "file" in changes:
        path = folder / "model.yaml"
        path.write_text(path.read_text().replace("file: model.pb", f"file: {changes['file']}"))
    with pytest.raises(ConfigError, match=problem) as caught:
        workshop.repository.find("m")
    assert "\n" not in str(caught.value)


def test_a_format_without_an_engine_names_the_key(workshop: Any) -> None:
    """The repository knows no engines: the error comes when the model is opened."""
    workshop.add("m", b"", format="frozen_grap")
    with pytest.raises(ConfigError, match=r"model\.yaml: format: no format 'frozen_grap': did you mean frozen_graph"):
        workshop.open("m")


def test_a_manifest_written_and_read_is_the_same(workshop: Any) -> None:
    """`model inspect` and `model build` write what the repository reads."""
    folder = workshop.add("m", b"", trained=False, input={"mean": [1, 2, 3], "constants": {"keep_prob:0": 1.0}})
    manifest = workshop.repository.find("m").manifest
    (folder / "model.yaml").write_text(manifest.to_yaml())
    assert workshop.repository.find("m").manifest == manifest


def test_the_confidence_is_a_head_only_on_request(workshop: Any) -> None:
    """A worker serves the mask alone; a vehicle also asks for the scores."""
    workshop.add("m", b"", confidence="coarse:0")
    workshop.add("other", b"")
    manifest = workshop.repository.find("m").manifest
    assert list(manifest.heads) == ["mask"]
    heads = manifest.with_confidence_head().heads
    assert heads == {**manifest.heads, CONFIDENCE_HEAD: OutputSection(tensor="coarse:0", kind=OutputKind.SCORES)}
    other = workshop.repository.find("other").manifest
    assert other.with_confidence_head() == other


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "it is a FIFO: give a regular file"),
        (lambda path: path.symlink_to(path.name), "cannot be read"),
        (lambda path: path.symlink_to("/etc/hostname"), "leads outside"),
        (lambda _: None, r"model\.pb is missing: build it with `skylane model build bad`"),
        (lambda path: path.write_bytes(b"another"), r"has SHA-256 [0-9a-f]{12}…, its manifest [0-9a-f]{12}…"),
    ],
    ids=["fifo", "circle", "outside", "missing", "changed"],
)
def test_a_model_file_that_is_no_file_or_another_one_is_refused(
    workshop: Any, make: Callable[[Path], None], problem: str
) -> None:
    """Replies have the hash of the model, and a worker that serves its whole repository goes on with the next one."""
    folder = workshop.add("bad", b"")
    (folder / "model.pb").unlink()
    make(folder / "model.pb")
    with pytest.raises(SkylaneError, match=problem):
        workshop.open("bad")


def test_a_pipe_inside_of_a_model_folder_is_refused(tmp_path: Path) -> None:
    """The hash leaves out nothing that an engine could open."""
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    os.mkfifo(tmp_path / "fingerprint.pb")
    with pytest.raises(OSError, match="it is a FIFO"):
        tree_sha256(tmp_path)


def test_a_model_in_a_circle_of_links_does_not_hide_the_others(workshop: Any) -> None:
    """Names are listed before any model is opened."""
    workshop.add("good", b"")
    (workshop.root / "circle").symlink_to("circle")
    assert workshop.repository.names() == ("good",)
    assert workshop.repository.find("good").file().is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not read a folder")
def test_an_unreadable_model_does_not_hide_the_others() -> None:
    """The command line names it when it is used; the others are served."""
    script = (
        "import os, sys; from pathlib import Path; from shared.models.repository import Repository; "
        "os.setgroups([]); os.setuid(65534); repository = Repository(Path(sys.argv[1])); "
        "print(repository.names()); repository.find('closed')"
    )
    root = Path(tempfile.mkdtemp())  # Users other than root cannot reach `tmp_path`.
    try:
        root.chmod(0o755)
        for name in ("closed", "open"):
            (root / name).mkdir()
            (root / name / "model.yaml").write_text("task: segmentation\n", encoding="utf-8")
        (root / "closed").chmod(0)
        ended = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(root)
    assert ended.stdout == "('closed', 'open')\n", ended.stderr
    assert "SkylaneError" in ended.stderr
    assert "Permission denied" in ended.stderr


def test_a_model_that_is_a_link_out_of_the_repository_is_refused(
    workshop: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Operators choose names, and must not reach other files."""
    outside = tmp_path_factory.mktemp("elsewhere") / "m"
    workshop.add("m", b"").rename(outside)
    (workshop.root / "m").symlink_to(outside)
    (workshop.root / "several").mkdir()
    (workshop.root / "several" / "2").symlink_to(outside)
    for name in ("m", "several"):
        with pytest.raises(SkylaneError, match="leads outside the repository: copy the model into it"):
            workshop.repository.find(name)


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening takes seconds, and replies must have the hash of the opened file."""
    folder = workshop.add("m", _graph(workshop))
    load = registry.load
    closed = []

    def meanwhile(*names: Any) -> Any:
        def opening(*how: Any) -> Any:
            engine = load(*names)(*how)
            monkeypatch.setattr(engine, "close", lambda: closed.append(engine))
            (folder / "model.pb").write_bytes(b"another")
            return engine

        return opening

    monkeypatch.setattr(registry, "load", meanwhile)
    with pytest.raises(SkylaneError, match="it was changed or is incomplete"):
        workshop.open("m")
    assert len(closed) == 1


def test_a_missing_repository_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """This is the first error on a new machine."""
    with pytest.raises(SkylaneError, match="give --models or SKYLANE_MODELS"):
        Repository(tmp_path / "absent").names()


def test_an_empty_repository_says_where_it_is_and_how_to_fill_it(tmp_path: Path) -> None:
    """The volume of a container may be empty."""
    with pytest.raises(UnknownNameError, match=r"there are none in .*: run 'skylane model build mine'"):
        Repository(tmp_path).versions("mine")


def test_the_environment_sets_the_default_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the variable, it is the user's repository."""
    monkeypatch.setenv("SKYLANE_MODELS", str(tmp_path / "elsewhere"))
    assert default_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("SKYLANE_MODELS")
    monkeypatch.chdir(tmp_path)
    assert default_root().name == "models"
    assert default_root().is_absolute()


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 8, 13, 3), np.uint8),
        np.zeros((8, 12, 3), np.uint8),
        np.zeros((1, 8, 12, 1), np.uint8),
        np.zeros((1, 8, 12, 3), np.float32),
    ],
)
def test_images_of_another_shape_are_refused(workshop: Any, images: Any) -> None:
    """TensorFlow's own message names internal tensors."""
    workshop.add("m", _graph(workshop))
    with workshop.open("m") as model, pytest.raises(SkylaneError, match="m needs uint8 N×8×12×3, got"):
        model.predict(images)


def test_the_warm_up_runs_single_images_and_full_batches(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported times are those of a single image; the number of runs is the manifest's, or 0 for a cold start."""
    workshop.add("m", _graph(workshop), warm_up={"runs": 2})
    with workshop.open("m", max_batch=3) as model:
        sizes: list[int] = []
        infer = TensorFlowEngine.infer

        def watched(engine: TensorFlowEngine, images: Any) -> Any:
            sizes.append(len(images))
            return infer(engine, images)

        monkeypatch.setattr(TensorFlowEngine, "infer", watched)
        assert model.warm_up(0) == []
        took_ms = model.warm_up()
    assert len(took_ms) == 2
    assert all(took > 0 for took in took_ms)
    assert sizes == [1, 1, 3, 3]


def test_the_batch_size_can_be_given(workshop: Any, pictures: Any) -> None:
    """The masks do not depend on the batch size."""
    workshop.add("m", _graph(workshop), batching={"max_size": 2})
    with workshop.open("m") as usual, workshop.open("m", max_batch=3) as model:
        assert (usual.max_batch_size, model.max_batch_size) == (2, 3)
        assert "batches of up to 3" in model.describe()
        np.testing.assert_array_equal(model.predict(pictures), usual.predict(pictures))


def test_versions_may_have_dots(workshop: Any) -> None:
    """They are sorted by value, and cannot lead out of the folder."""
    for version in ("1.9", "1.10", "1.2.3", "beta"):
        workshop.add("m", b"")
        (workshop.root / "m").rename(workshop.root / version)
    (workshop.root / "m").mkdir()
    for version in ("1.9", "1.10", "1.2.3", "beta"):
        (workshop.root / version).rename(workshop.root / "m" / version)
    assert workshop.repository.versions("m") == ("beta", "1.2.3", "1.9", "1.10")
    assert workshop.repository.find("m").card().version == "1.10"
    assert workshop.repository.find("m", "1.2.3").card().version == "1.2.3"
    with pytest.raises(UnknownNameError):
        workshop.repository.find("m", "..").card()


@pytest.mark.parametrize("version", ["..", ".1", "a/b", "1\n", ""])
def test_an_invalid_version_is_refused(workshop: Any, version: str) -> None:
    """The error comes at load, not with each frame."""
    workshop.add("m", b"", version=version)
    with pytest.raises(ConfigError, match="version"):
        workshop.repository.find("m")
