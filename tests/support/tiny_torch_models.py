"""Writes the tiny models as TorchScript, with the weights of the Keras files and outputs by position."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from shared.files import tree_sha256
from shared.models.manifest import MANIFEST_NAME
from shared.models.repository import Repository
from tests.support import tiny_models

_HEADS = {"segmentation": 1, "classification": 1, "detection": 2, "tensors": 2}


def write(repository: Repository, source: str, name: str) -> None:
    """Writes `source`, a model of `tests.support.tiny_models`, as TorchScript with the same float input."""
    torch: Any = import_module("torch")
    weights = [
        torch.from_numpy(each)
        for each in tiny_models.keras.saving.load_model(repository.find(source).file()).get_weights()
    ]
    network = _network(torch, source, weights)
    folder = repository.root / name
    folder.mkdir()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript, and warns about sizes that become constants.
        example = torch.zeros((1, tiny_models.HEIGHT, tiny_models.WIDTH, 3))
        torch.jit.save(torch.jit.trace(network, example, check_trace=False), str(folder / "model.pt"))
    manifest = yaml.safe_load((repository.root / source / MANIFEST_NAME).read_text())
    outputs = manifest["outputs"].values() if "outputs" in manifest else [manifest["output"]]
    for position, output in enumerate(outputs):
        output["tensor"] = str(position)
    assert len(outputs) == _HEADS[source]
    changes = {"format": "torchscript", "file": "model.pt", "sha256": tree_sha256(Path(folder / "model.pt"))}
    (folder / MANIFEST_NAME).write_text(yaml.safe_dump({**manifest, **changes}))


def _network(torch: Any, task: str, weights: list[Any]) -> Any:
    functional = torch.nn.functional
    kernel, bias, spatial, spatial_bias, *rest = weights

    class Tiny(torch.nn.Module):  # type: ignore[misc]  # PyTorch is Any here.
        def forward(self, images: Any) -> Any:
            planes = functional.pad(images.permute(0, 3, 1, 2), (0, 1, 0, 1))  # SAME padding for even sides, stride 2.
            features = functional.relu(functional.conv2d(planes, kernel.permute(3, 2, 0, 1), bias, 2))
            filters = spatial.permute(2, 3, 0, 1)
            features = functional.conv2d(features, filters, spatial_bias, 1, 1, groups=len(filters))
            features = features * functional.relu6(features + 3.0) / 6.0
            if task == "tensors":
                features = images.mean((1, 2, 3), keepdim=True).sqrt() * features
            means = features.mean((2, 3))
            if task == "segmentation":
                scores = functional.conv2d(features, rest[0].permute(3, 2, 0, 1), rest[1])
                sides = (tiny_models.HEIGHT, tiny_models.WIDTH)
                return functional.interpolate(scores, sides, mode="bilinear").permute(0, 2, 3, 1)
            if task == "classification":
                return means @ rest[0] + rest[1]
            if task == "detection":
                places = torch.sigmoid(means @ rest[0] + rest[1]).reshape(-1, tiny_models.BOXES, 4)
                return places, (means @ rest[2] + rest[3]).reshape(-1, tiny_models.BOXES, tiny_models.CLASSES)
            return features.permute(0, 2, 3, 1), means

    return Tiny().eval()
