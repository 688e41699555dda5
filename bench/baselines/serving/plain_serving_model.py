"""A model as TensorFlow Serving would serve it: what the graph itself gives, and nothing after it.

Skylane has a segmentation's scores become class ids beside the model, so that a byte a pixel leaves it. The first system's
two larger models gave twenty 32-bit scores for every pixel, and those were what its clients turned into Python lists.
"""

import shutil
from pathlib import Path

from bench.load.playback import BenchError
from cloud.models.manifest import MANIFEST_NAME, OutputKind, OutputSection
from cloud.models.repository import Repository
from shared.messages.model_card import Task


def as_it_lies(models: Path, model: str, folder: Path) -> Path:
    """A repository in `folder` with the model of that name, whose head `scores` is the graph's own: N×H×W×C float32.

    Raises:
        BenchError: the model gives no scores.
    """
    repository = Repository(models)
    manifest = repository.manifest(model)
    if manifest.output is None or manifest.output.kind is not OutputKind.SCORES:
        raise BenchError(f"{model} gives no scores of pixels: choose a model that does, such as street-lite")
    served = manifest.model_copy(
        update={
            "task": Task.TENSORS,
            "output": None,
            "outputs": {"scores": OutputSection(tensor=manifest.output.tensor, kind=OutputKind.TENSOR)},
        }
    )
    source = repository.file(model)
    place = folder / model
    place.mkdir(parents=True)
    copied = shutil.copytree if source.is_dir() else shutil.copyfile
    copied(source, place / manifest.file)
    (place / MANIFEST_NAME).write_text(served.to_yaml(), encoding="utf-8")
    return folder
