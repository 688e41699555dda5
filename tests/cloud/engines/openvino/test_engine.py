import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.openvino.graph import optimised, read_end_to_end
from cloud.engines.openvino.runtime import core, ops, ov
from cloud.models.loader import ModelLoader
from shared.inference.engine import DeviceError, EngineError
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository

Pictures = npt.NDArray[np.uint8]
HEIGHT, WIDTH, CLASSES = 8, 12, 5
BUILT_IN = Path(__file__).resolve().parents[4] / "models"
WITH_OPENVINO = {"engine": "openvino"}


def _scores(images: Any, weights: npt.NDArray[np.float32]) -> Any:
    """The workshop's network in OpenVINO operations: float N×3×H×W to float N×5×H×W."""
    kernels = weights.transpose(3, 2, 0, 1)
    return ops.convolution(images, kernels, [1, 1], [1, 1], [1, 1], [1, 1])


def _add_ir(workshop: Any, build: Callable[[Any], dict[str, Any]], **manifest: Any) -> None:
    """Adds a model of format `openvino` with a planar float input `picture`; `build` creates its outputs by name."""
    image = ops.parameter([-1, 3, HEIGHT, WIDTH], np.float32)
    image.output(0).get_tensor().set_names({"picture"})
    results = []
    for name, node in build(image).items():
        result = ops.result(node)
        result.output(0).get_tensor().set_names({name})
        results.append(result)
    model = ov.Model(results, [image])

    def write(path: Path) -> None:
        path.mkdir()
        ov.save_model(model, path / "model.xml", compress_to_fp16=False)

    section = {"tensor": "picture", **manifest.pop("input", {})}
    workshop.add("m", write, format="openvino", file="ir", input=section, **manifest)


def _means(image: Any) -> Any:
    """Returns scores N×5 that depend on the image's means."""
    channels = ops.reduce_mean(image, np.array([2, 3]), keep_dims=False)
    return ops.matmul(channels, np.random.default_rng(9).standard_normal((3, CLASSES)).astype(np.float32), False, False)  # noqa: FBT003 - neither is transposed.


def test_a_classification_returns_probabilities(workshop: Any, pictures: Pictures) -> None:
    """The engine converts logits by softmax."""
    _add_ir(
        workshop,
        lambda image: {"logits": _means(ops.multiply(image, np.float32(0.01)))},
        task="classification",
        output={"tensor": "logits", "kind": "logits"},
    )
    with workshop.open("m") as model:
        scores = model.infer(pictures)["scores"]
    assert scores.shape == (3, CLASSES)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    assert scores.std() > 0


@pytest.mark.parametrize(
    ("order", "normalised", "expected"),
    [
        ("xyxy", False, [1, 2, 5, 4]),
        ("yxyx", False, [2, 1, 4, 5]),
        ("cxcywh", False, [1 - 5 / 2, 0, 1 + 5 / 2, 4]),
        ("xyxy", True, [1 * WIDTH, 2 * HEIGHT, 5 * WIDTH, 4 * HEIGHT]),
    ],
)
def test_a_detection_returns_corners_in_pixels(
    workshop: Any, pictures: Pictures, order: str, *, normalised: bool, expected: list[float]
) -> None:
    """The engine converts every box format of the manifest."""

    def outputs(image: Any) -> dict[str, Any]:
        zeros = ops.multiply(ops.reduce_mean(image, np.array([1, 2, 3]), keep_dims=True), np.float32(0))
        flat = ops.squeeze(zeros, np.array([3]))  # N×1×1
        return {
            "boxes": ops.add(flat, np.array([[[1, 2, 5, 4]]], np.float32)),
            "scores": ops.add(flat, np.zeros((1, 1, CLASSES), np.float32)),
        }

    _add_ir(
        workshop,
        outputs,
        task="detection",
        output=None,
        outputs={"boxes": {"tensor": "boxes", "kind": "boxes"}, "scores": {"tensor": "scores", "kind": "logits"}},
        box_format={"order": order, "normalised": normalised},
    )
    with workshop.open("m") as model:
        result = model.infer(pictures)
    np.testing.assert_allclose(result["boxes"], np.tile(np.array(expected, np.float32), (3, 1, 1)))
    np.testing.assert_allclose(result["scores"], np.full((3, 1, CLASSES), 0.5, np.float32))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input": {"dtype": "uint8"}}, "is float32, the manifest's dtype uint8"),
        ({"output": {"tensor": "scores", "kind": "class_ids"}}, "class ids need N×H×W"),
        ({"labels": [{"name": "road", "colour": [1, 2, 3]}]}, "scores where the manifest has 1 labels"),
    ],
)
def test_a_model_that_contradicts_its_manifest_is_refused(workshop: Any, changes: dict[str, Any], problem: str) -> None:
    """Loading fails with an error of one line."""
    manifest = {"output": {"tensor": "scores", "kind": "scores"}} | changes
    _add_ir(workshop, lambda image: {"scores": _scores(image, workshop.weights)}, **manifest)
    with pytest.raises(EngineError) as caught:
        workshop.open("m")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_int8_is_refused_for_a_float_model(workshop: Any) -> None:
    """A measurement of int8 must not silently run another precision."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)
    with pytest.raises(EngineError, match="cannot be run in int8: quantise it with `skylane model quantize`"):
        workshop.open("m", Placement(precision=Precision.INT8))


def test_a_precision_that_the_processor_lacks_is_refused(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated bf16 is slower than fp32."""
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, **WITH_OPENVINO)

    class OldProcessor:
        """An ov.Core on a processor without bf16."""

        available_devices = ("CPU",)

        def get_property(self, _device: str, _name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr("cloud.engines.openvino.engine.core", OldProcessor)
    with pytest.raises(DeviceError, match="does not compute in bf16: use fp32 or int8"):
        workshop.open("m", Placement(precision=Precision.BF16))


def test_the_built_in_model_has_dilated_convolutions_and_the_labels_of_tensorflow() -> None:
    """The rewriting applies to the nested phases of the real network."""
    repository = Repository(BUILT_IN)
    digest = hashlib.sha256(b"frame").digest()
    noise = np.random.default_rng(list(digest)).integers(0, 256, (1, 76, 121, 3), np.uint8)
    image = noise.repeat(8, axis=1).repeat(8, axis=2)
    cpu = Placement(device="cpu", precision=Precision.FP32)
    with (
        ModelLoader(repository, cpu).open("road-small") as tensorflow,
        ModelLoader(repository, cpu, engine="openvino").open("road-small") as openvino,
    ):
        assert np.mean(openvino.predict(image) == tensorflow.predict(image)) > 0.9999
    manifest = repository.find("road-small").manifest
    whole = read_end_to_end(core(), repository.find("road-small").file(), manifest)
    kinds = {node.get_type_name() for node in optimised(whole, 1).get_ordered_ops()}
    assert not {"SpaceToBatch", "BatchToSpace", "Tile"} & kinds


def test_a_signal_after_unloading_in_another_thread_does_not_crash_the_process(
    add_onnx: Callable[[Path, str], None], tmp_path: Path
) -> None:
    """A worker that has unloaded a model must still drain on SIGTERM; see `cloud.engines.openvino.runtime.core`."""
    add_onnx(tmp_path, "m")
    script = """if True:
        import faulthandler, gc, os, signal, sys, threading
        from pathlib import Path
        from shared.models.manifest import Placement
        from cloud.models.opening import open_model
        from shared.models.repository import Repository

        faulthandler.enable()
        models = [open_model(Repository(Path(sys.argv[1])).find("m"), "openvino", Placement(device="cpu"))]

        def unload():
            models.pop().close()
            gc.collect()

        thread = threading.Thread(target=unload)
        thread.start()
        thread.join()
        received = []
        signal.signal(signal.SIGTERM, lambda *_: received.append(True))
        os.kill(os.getpid(), signal.SIGTERM)
        print("received" if received else "not received")
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "received"), done.stderr


def test_importing_openvino_sends_no_telemetry(tmp_path: Path) -> None:
    """Without the engine's setting, `import openvino` loads a package that sends usage data."""
    script = "import cloud.engines.openvino.engine, sys; sys.exit(any('openvino_telemetry.' in name for name in sys.modules))"
    root = str(Path(__file__).resolve().parents[4])
    kept = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": root}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=kept)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "intel").exists()  # The folder of the telemetry's user id.
