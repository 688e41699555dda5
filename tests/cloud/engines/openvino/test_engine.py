import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import DeviceError, EngineError, InferenceError, Placement, Precision
from cloud.engines.openvino.graph import read_end_to_end, rewritten
from cloud.engines.openvino.library import core, ops, ov
from cloud.engines.tensorflow.library import tf
from cloud.models.repository import Repository

Pictures = npt.NDArray[np.uint8]
HEIGHT, WIDTH, CLASSES = 8, 12, 5
SHIPPED = Path(__file__).resolve().parents[4] / "models"
WITH_OPENVINO = {"engine": "openvino"}


def _scores(images: Any, weights: npt.NDArray[np.float32]) -> Any:
    """The workshop's network in OpenVINO's operations: float N×3×H×W to float N×5×H×W."""
    kernels = weights.transpose(3, 2, 0, 1)
    return ops.convolution(images, kernels, [1, 1], [1, 1], [1, 1], [1, 1])


def _add_ir(workshop: Any, answers: Callable[[Any], dict[str, Any]], *, sides: Any = None, **manifest: Any) -> None:
    """A model of format `openvino`: `answers` makes its outputs by name from a planar float input `picture`."""
    picture = ops.parameter(sides or [-1, 3, HEIGHT, WIDTH], np.float32)
    picture.output(0).get_tensor().set_names({"picture"})
    results = []
    for name, node in answers(picture).items():
        result = ops.result(node)
        result.output(0).get_tensor().set_names({name})
        results.append(result)
    model = ov.Model(results, [picture])

    def write(path: Path) -> None:
        path.mkdir()
        ov.save_model(model, path / "model.xml", compress_to_fp16=False)

    given = {"tensor": "picture", **manifest.pop("input", {})}
    workshop.add("m", write, format="openvino", file="ir", input=given, **manifest)


@pytest.mark.parametrize("batch", [None, 1, 2], ids=["any batch", "batch of one", "batch of two"])
def test_a_frozen_graph_is_bit_exact_with_the_direct_call(workshop: Any, pictures: Pictures, batch: int | None) -> None:
    """Who changes the engine must not change a label, whatever the batch."""
    graph = workshop.graph(lambda scores: scores, batch=batch)
    workshop.add("m", graph, output={"kind": "scores"}, batching={"max_size": 3}, **WITH_OPENVINO)
    with workshop.repository.load("m") as model:
        masks = model.predict(pictures)
        assert (model.engine_name, model.precision, model.device) == ("openvino", Precision.FP32, "cpu")
        assert model.max_batch_size == (batch or 3)
    assert masks.dtype == np.uint8
    np.testing.assert_array_equal(masks, workshop.direct(pictures.astype(np.float32)))


def test_equal_scores_give_the_lowest_class(workshop: Any, pictures: Pictures) -> None:
    """NumPy's rule, so that a mask does not depend on what ran the model."""
    workshop.add("m", workshop.graph(tf.zeros_like), output={"kind": "scores"}, **WITH_OPENVINO)
    with workshop.repository.load("m") as model:
        assert not model.predict(pictures).any()


def test_an_answer_stays_what_it_was_when_the_next_frame_is_run(workshop: Any, pictures: Pictures) -> None:
    """OpenVINO writes every answer to the same place; the worker still encodes the last one when the next is run."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)
    with workshop.repository.load("m") as model:
        first = model.predict(pictures[:1])
        kept = first.copy()
        model.predict(pictures[1:2])
    np.testing.assert_array_equal(first, kept)


def test_pictures_that_nobody_may_write_to_are_run(workshop: Any, pictures: Pictures) -> None:
    """A decoder's picture may be a view of the message's bytes."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)
    pictures.flags.writeable = False
    with workshop.repository.load("m") as model:
        np.testing.assert_array_equal(model.predict(pictures), workshop.direct(pictures.astype(np.float32)))


def test_a_planar_model_with_scaling_in_its_manifest_is_right(workshop: Any, pictures: Pictures) -> None:
    """Models from elsewhere are N×C×H×W and normalise outside: both are done in the graph, channel by channel."""
    mean, std = (0.5, 0.25, 0.75), (0.25, 0.5, 2.0)
    section = {"scale": 1 / 255, "mean": list(mean), "std": list(std)}
    _add_ir(
        workshop,
        lambda picture: {"scores": _scores(picture, workshop.weights)},
        input=section,
        output={"tensor": "scores", "kind": "scores"},
    )
    with workshop.repository.load("m") as model:
        masks = model.predict(pictures)
    scaled = (pictures.astype(np.float32) * np.float32(1 / 255) - np.array(mean, np.float32)) / np.array(
        std, np.float32
    )
    assert np.mean(masks == workshop.direct(scaled)) > 0.99  # Another order of rounding may turn a tie.


def test_a_coarse_answer_is_laid_on_the_input_by_nearest(workshop: Any, pictures: Pictures) -> None:
    """Some networks answer at a fraction of their input: the mask still has one class for each pixel."""
    _add_ir(
        workshop,
        lambda picture: {
            "scores": ops.slice(
                _scores(picture, workshop.weights),
                *(np.array(each) for each in ([0, 0], [HEIGHT, WIDTH], [4, 4], [2, 3])),
            )
        },
        output={"tensor": "scores", "kind": "scores"},
    )
    with workshop.repository.load("m") as model:
        masks = model.predict(pictures)
    coarse = workshop.direct(pictures.astype(np.float32))[:, ::4, ::4]
    np.testing.assert_array_equal(masks, coarse.repeat(4, axis=1).repeat(4, axis=2))


def _means(picture: Any) -> Any:
    """N×5: something of a picture to classify it by."""
    channels = ops.reduce_mean(picture, np.array([2, 3]), keep_dims=False)
    return ops.matmul(channels, np.random.default_rng(9).standard_normal((3, CLASSES)).astype(np.float32), False, False)  # noqa: FBT003 - neither is transposed.


def test_a_classification_answers_probabilities(workshop: Any, pictures: Pictures) -> None:
    """A vehicle reads 0.9 as nine in ten: logits must not get out."""
    _add_ir(
        workshop,
        lambda picture: {"logits": _means(ops.multiply(picture, np.float32(0.01)))},
        task="classification",
        output={"tensor": "logits", "kind": "logits"},
    )
    with workshop.repository.load("m") as model:
        scores = model.infer(pictures)["scores"]
    assert scores.shape == (3, CLASSES)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    assert scores.std() > 0


@pytest.mark.parametrize(
    ("order", "normalised", "wanted"),
    [
        ("xyxy", False, [1, 2, 5, 4]),
        ("yxyx", False, [2, 1, 4, 5]),
        ("cxcywh", False, [1 - 5 / 2, 0, 1 + 5 / 2, 4]),
        ("xyxy", True, [1 * WIDTH, 2 * HEIGHT, 5 * WIDTH, 4 * HEIGHT]),
    ],
)
def test_a_detection_answers_corners_in_pixels(
    workshop: Any, pictures: Pictures, order: str, *, normalised: bool, wanted: list[float]
) -> None:
    """Every detector writes its boxes in another way; a box in the wrong order is somewhere else."""

    def answers(picture: Any) -> dict[str, Any]:
        nothing = ops.multiply(ops.reduce_mean(picture, np.array([1, 2, 3]), keep_dims=True), np.float32(0))
        flat = ops.squeeze(nothing, np.array([3]))  # N×1×1
        return {
            "boxes": ops.add(flat, np.array([[[1, 2, 5, 4]]], np.float32)),
            "scores": ops.add(flat, np.zeros((1, 1, CLASSES), np.float32)),
        }

    _add_ir(
        workshop,
        answers,
        task="detection",
        output=None,
        outputs={"boxes": {"tensor": "boxes", "kind": "boxes"}, "scores": {"tensor": "scores", "kind": "logits"}},
        box_format={"order": order, "normalised": normalised},
    )
    with workshop.repository.load("m") as model:
        outputs = model.infer(pictures)
    np.testing.assert_allclose(outputs["boxes"], np.tile(np.array(wanted, np.float32), (3, 1, 1)))
    np.testing.assert_allclose(outputs["scores"], np.full((3, 1, CLASSES), 0.5, np.float32))


def test_raw_tensors_come_as_the_model_gives_them(workshop: Any, pictures: Pictures) -> None:
    """Who asks for tensors wants the model's own numbers."""
    _add_ir(
        workshop,
        lambda picture: {"features": _means(picture), "sum": ops.reduce_sum(picture, np.array([1, 2, 3]))},
        task="tensors",
        output=None,
        outputs={"embedding": {"tensor": "features", "kind": "tensor"}, "total": {"tensor": "sum", "kind": "tensor"}},
    )
    with workshop.repository.load("m") as model:
        outputs = model.infer(pictures)
    assert outputs["embedding"].shape == (3, CLASSES)
    np.testing.assert_allclose(outputs["total"], pictures.sum(axis=(1, 2, 3)), rtol=1e-5)


def test_a_number_that_is_none_is_an_error_of_the_frame(workshop: Any, pictures: Pictures) -> None:
    """NaN would travel as a score of nothing."""
    _add_ir(
        workshop,
        lambda picture: {"logits": _means(ops.log(ops.subtract(picture, np.float32(300))))},
        task="classification",
        output={"tensor": "logits", "kind": "logits"},
    )
    with workshop.repository.load("m") as model, pytest.raises(InferenceError, match="returned NaN in 'scores'"):
        model.infer(pictures)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input": {"tensor": "pictures"}}, "no input 'pictures': did you mean picture"),
        ({"output": {"tensor": "score", "kind": "scores"}}, "no output 'score': did you mean scores"),
        ({"input": {"dtype": "uint8"}}, "is float32, the manifest's dtype uint8"),
        ({"input": {"height": 9}}, "the manifest's N×9×12×3"),
        ({"output": {"tensor": "scores", "kind": "class_ids"}}, "class ids need N×H×W"),
        ({"labels": [{"name": "road", "colour": [1, 2, 3]}]}, "scores where the manifest has 1 labels"),
    ],
)
def test_a_model_that_is_not_as_its_manifest_says_is_refused(
    workshop: Any, changes: dict[str, Any], problem: str
) -> None:
    """One line that says what is wrong, before the first frame."""
    manifest = {"output": {"tensor": "scores", "kind": "scores"}} | changes
    _add_ir(workshop, lambda picture: {"scores": _scores(picture, workshop.weights)}, **manifest)
    with pytest.raises(EngineError) as caught:
        workshop.repository.load("m")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["openvino", "onnx", "tflite"])
def test_a_file_that_is_no_model_is_refused(workshop: Any, form: str) -> None:
    """Whatever is in a file, one line comes out."""

    def write(path: Path) -> None:
        path.mkdir(parents=True)
        (path / "model.xml").write_bytes(b"<net" + bytes(range(200)))

    content = write if form == "openvino" else bytes(range(256)) * 20
    workshop.add("m", content, format=form, file={"openvino": "ir"}.get(form, f"model.{form}"), **WITH_OPENVINO)
    with pytest.raises(EngineError, match="OpenVINO cannot load this file") as caught:
        workshop.repository.load("m")
    assert "\n" not in str(caught.value)


def test_a_graph_that_reads_files_is_refused(workshop: Any) -> None:
    """A graph is a program, for this engine as for TensorFlow's."""

    def peeking(images: Any) -> Any:
        return images + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)

    workshop.add("m", workshop.graph(lambda scores: tf.argmax(scores, -1), prepare=peeking), **WITH_OPENVINO)
    with pytest.raises(EngineError, match=r"\(ReadFile\) reaches out of the network"):
        workshop.repository.load("m")


def test_a_precision_that_the_file_has_not_is_refused(workshop: Any) -> None:
    """Int8 is in a file or it is not; to run another in silence would spoil a measurement."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)
    with pytest.raises(EngineError, match="cannot be run in int8: quantise it with `skylane model quantize`"):
        workshop.repository.load("m", Placement(precision=Precision.INT8))


def test_a_precision_that_the_processor_has_not_is_refused(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated it would be slower than what it should speed up."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)

    class Plain:
        """OpenVINO on an older processor."""

        available_devices = ("CPU",)

        def get_property(self, _device: str, _name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr("cloud.engines.openvino.engine.core", Plain)
    with pytest.raises(DeviceError, match="does not compute in bf16: use fp32 or int8"):
        workshop.repository.load("m", Placement(precision=Precision.BF16))


def test_a_gpu_that_is_not_there_is_a_clear_error(workshop: Any) -> None:
    """Who asked for a GPU must not measure a CPU."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)
    with pytest.raises(DeviceError, match="OpenVINO sees no GPU on this machine"):
        workshop.repository.load("m", Placement(device="gpu:0"))


def test_the_shipped_model_answers_as_with_tensorflow_and_has_no_phases_left() -> None:
    """What the rewriting is for: the real network's nested phases, and not one label changed."""
    repository = Repository(SHIPPED)
    digest = hashlib.sha256(b"frame").digest()
    noise = np.random.default_rng(list(digest)).integers(0, 256, (1, 76, 121, 3), np.uint8)
    picture = noise.repeat(8, axis=1).repeat(8, axis=2)
    cpu = Placement(device="cpu", precision=Precision.FP32)
    with (
        repository.load("road-small", cpu) as tensorflow,
        repository.load("road-small", cpu, engine="openvino") as ours,
    ):
        assert np.mean(ours.predict(picture) == tensorflow.predict(picture)) > 0.9999
    manifest = repository.manifest("road-small")
    whole = read_end_to_end(core(), repository.file("road-small"), manifest)
    kinds = {node.get_type_name() for node in rewritten(whole, 1).get_ordered_ops()}
    assert not {"SpaceToBatch", "BatchToSpace", "Tile"} & kinds


def test_a_signal_after_an_engine_went_in_another_thread_is_only_a_signal() -> None:
    """A worker that has unloaded a model must drain when it is asked to end, and not die of its signal handler."""
    script = """if True:
        import faulthandler, gc, os, signal, threading
        from pathlib import Path
        from cloud.engines.engine import Placement
        from cloud.models.repository import Repository

        faulthandler.enable()
        models = [Repository(Path("models")).load("road-small", Placement(device="cpu"), engine="openvino")]

        def unload():
            models.pop().close()
            gc.collect()

        thread = threading.Thread(target=unload)
        thread.start()
        thread.join()
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
        os.kill(os.getpid(), signal.SIGTERM)
        print("asked" if asked else "not asked")
    """
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=SHIPPED.parent, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "asked"), done.stderr


def test_nobody_is_told_that_openvino_was_imported(tmp_path: Path) -> None:
    """A worker talks to its broker alone; `import openvino` would also talk to its makers."""
    script = "import cloud.engines.openvino.engine, sys; sys.exit(any('openvino_telemetry.' in name for name in sys.modules))"
    root = str(Path(__file__).resolve().parents[4])
    kept = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": root}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=kept)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "intel").exists()  # Where it would keep the number that a user is known by.
