"""Exports a model as TensorFlow Serving would serve it: with the scores of the graph as its output.

Skylane converts the scores of a segmentation to class ids next to the model, one byte per pixel. The first system's two larger
models returned twenty 32-bit scores for every pixel, which its clients converted to Python lists.
"""

import shutil
from pathlib import Path

from bench.harness.comparison import BenchError
from cloud.models.manifest import MANIFEST_NAME, OutputKind, OutputSection
from cloud.models.repository import Repository


def export_scores_model(models: Path, model: str, folder: Path) -> Path:
    """Writes a repository to `folder` in which the model has the output `scores`, N×H×W×C float32; returns `folder`.

    Raises:
        BenchError: the model has no scores.
    """
    stored = Repository(models).find(model)
    manifest = stored.manifest
    if manifest.output is None or manifest.output.kind is not OutputKind.SCORES:
        raise BenchError(f"{model} has no scores of pixels: choose a model that has, such as street-lite")
    served = manifest.model_copy(
        update={
            "task": "tensors",
            "output": None,
            "outputs": {"scores": OutputSection(tensor=manifest.output.tensor, kind=OutputKind.TENSOR)},
        }
    )
    source = stored.file()
    model_folder = folder / model
    model_folder.mkdir(parents=True)
    copy = shutil.copytree if source.is_dir() else shutil.copyfile
    copy(source, model_folder / manifest.file)
    (model_folder / MANIFEST_NAME).write_text(served.to_yaml(), encoding="utf-8")
    return folder
