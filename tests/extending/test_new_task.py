"""A task is added with one file, this one, and one line in the table: here depth estimation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from edge.config import EdgeConfig
from edge.run import run
from shared.errors import SkylaneError
from shared.messages import tensors
from shared.models.repository import Repository
from shared.registry import Entry
from shared.runlog.latency_log import read_rows
from shared.task import TASKS, Confidence, Head
from tests.pipeline.rig import HEIGHT, WIDTH, check, noise, worker
from tests.support.workshop import Workshop

FRAMES = 4


@dataclass(frozen=True)
class Depth:
    """The distance of every pixel."""

    metres: npt.NDArray[np.float32]  # H×W


class DepthTask:
    """Depth estimation; the result is an array `metres`, float32 H×W."""

    result_name = "depth"
    codecs = tuple(tensors.TENSOR_CODECS)
    has_shape = False
    sinks = ("jsonl", "overlay")
    labels = (0, 1)
    heads: ClassVar[dict[str, Head]] = {"metres": Head(("tensor",), "float32", ("height", "width"))}
    optional_heads: ClassVar[dict[str, Head]] = {}
    settings = ()

    def result(self, outputs: Mapping[str, Any], _message: Any, _manifest: Any) -> Depth:
        """See Task."""
        return Depth(outputs["metres"])

    def encode(self, result: Depth, codec: str) -> bytes:
        """See Task."""
        return tensors.encode({"metres": result.metres}, codec)

    def decode(self, data: Any, codec: str, _shape: Any, geometry: Any = None, _labels: int = 0) -> Depth:
        """See Task."""
        metres = tensors.decode(data, codec)["metres"]
        if geometry is not None and metres.shape != (geometry.target_height, geometry.target_width):
            raise SkylaneError(f"its shape is {metres.shape}: send that of the model's input")
        return Depth(metres)

    def draw(self, rgb: Any, result: Depth, _labels: Any, _geometry: Any, opacity: float) -> Any:
        """See Task."""
        grey = cv2.resize(np.clip(result.metres, 0, 255).astype(np.uint8), rgb.shape[1::-1])
        return cv2.addWeighted(rgb, 1 - opacity, np.repeat(grey[..., np.newaxis], 3, axis=2), opacity, 0)

    def json_fields(self, result: Depth, _geometry: Any, _labels: Any) -> dict[str, Any]:
        """See Task."""
        return {"nearest_m": float(result.metres.min()), "farthest_m": float(result.metres.max())}

    def agreement(self, reference: Mapping[str, Any], given: Mapping[str, Any], _manifest: Any) -> float:
        """See Task."""
        return float(np.mean(np.isclose(reference["metres"], given["metres"], rtol=1e-3)))

    def confidence(self, _outputs: Mapping[str, Any], _manifest: Any, _temperature: float) -> Confidence:
        """See Task."""
        return Confidence(np.ones(1, np.float32), two_sided=False)


def _repository(root: Path) -> Repository:
    """Makes a repository with a model whose depth of a pixel is the mean of its colours."""
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (None, HEIGHT, WIDTH, 3), "input")
        tf.reduce_mean(tf.cast(images, tf.float32), axis=3, name="depth")
    root.mkdir()
    workshop = Workshop(root)
    workshop.add(
        "stereo",
        graph.as_graph_def(),
        task="depth",
        input={"dtype": "uint8", "height": HEIGHT, "width": WIDTH},
        output={"tensor": "depth:0", "kind": "tensor"},
        labels=[],
        warm_up={"runs": 1},
    )
    return workshop.repository


def test_a_new_task_runs_from_the_camera_to_the_files(
    embedded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest, engine, worker, messages, vehicle, sinks and images all use its one object."""
    monkeypatch.setitem(TASKS, "depth", Entry(f"{__name__}:DepthTask", "edge"))
    frames, out, printed = tmp_path / "frames", tmp_path / "car-depth", StringIO()
    frames.mkdir()
    pictures = [noise(index, (HEIGHT, WIDTH, 3)) for index in range(FRAMES)]
    for index, rgb in enumerate(pictures):
        cv2.imwrite(str(frames / f"{index}.png"), rgb[..., ::-1])
    config = EdgeConfig(broker=embedded_url, vehicle=out.name, model="stereo", out=out, closed_loop=True, codec="raw")
    with ModelLoader(_repository(tmp_path / "models")).open("stereo") as model, worker(embedded_url, model):
        assert run(str(frames), config, Console(file=printed, width=160)) == 0, printed.getvalue()
    check(list(read_rows(out)))
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert sorted(line["index"] for line in lines) == list(range(FRAMES))
    for line in lines:
        metres = pictures[line["index"]].astype(np.float32).mean(axis=2)
        assert (line["task"], line["model"]) == ("depth", "stereo")
        assert (line["nearest_m"], line["farthest_m"]) == pytest.approx((metres.min(), metres.max()))
    assert len(list((out / "overlays").glob("*.jpg"))) == FRAMES
