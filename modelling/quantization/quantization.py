"""Post-training quantisation: a model in fewer bits, for OpenVINO, and what its answers lost by it."""

import contextlib
import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from cloud.engines.engine import Outputs, Placement, Precision
from cloud.engines.openvino.graph import IMAGES, IR_NAME, model_batch_size, read_end_to_end, rewritten
from cloud.engines.openvino.library import core, ov
from cloud.models.agreement import agreement
from cloud.models.manifest import MANIFEST_NAME, Manifest, OutputKind
from cloud.models.model import Model
from cloud.models.repository import Repository
from modelling.evaluation.confusion import Confusion
from modelling.evaluation.segmentation import UNLABELLED, UNSEEN
from modelling.quantization.calibration_frames import CalibrationFrames, Judged
from rosbag_tools.drive.scene import CLASSES
from shared.errors import MissingExtraError, SkylaneError
from shared.hashing import tree_sha256
from shared.imaging.geometry import to_source
from shared.imaging.labels import Labels
from shared.messages.model_card import Task

PRECISIONS = (Precision.INT8, Precision.FP16)

_FILE = "ir"  # The folder of model.xml and model.bin within the model's.
_KINDS = {"mask": OutputKind.CLASS_IDS, "scores": OutputKind.PROBABILITIES, "boxes": OutputKind.BOXES}
# What stays in float: gates, sums and resizing are quick as they are, and to quantise them costs a pass over the map.
_LEFT_FLOAT = ("Add", "AvgPool", "Divide", "Interpolate", "Multiply", "ReduceMean", "Subtract")
_MB = 1e6


class QuantisationError(SkylaneError):
    """A model cannot be quantised."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """A model's new folder and what was measured on frames that it was not calibrated with."""

    folder: Path
    frames: int
    agreement: float  # Share of labels equal to the source model's, 0 to 1.
    mean_iou_before: float | None  # None where nobody knows what is true.
    mean_iou_after: float | None
    megabytes_before: float
    megabytes_after: float


def quantise(
    repository: Repository,
    name: str,
    precision: Precision,
    frames: CalibrationFrames,
    *,
    called: str,
    replace: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Quantised:
    """Write model `called` into the repository: `name` with its numbers in `precision`, as OpenVINO's files.

    fp16 rounds the weights; int8 also finds, on the frames to calibrate with, in which steps activations are counted.

    Raises:
        SkylaneError: the model cannot be read or is quantised already, the folder is there, NNCF is not installed.
    """
    folder = repository.root / called
    if folder.exists() and not replace:
        raise QuantisationError(f"{folder} is there already: choose another --name, or give --force to replace it")
    manifest, path = repository.manifest(name), repository.file(name)
    if manifest.remote is not None:
        raise QuantisationError(f"{name} is on another server, {manifest.remote.address}: quantise it there")
    if manifest.precision is not Precision.FP32:
        raise QuantisationError(f"{name} holds {manifest.precision} numbers already: quantise the model that it is of")
    whole = read_end_to_end(core(), path, manifest)
    on_step(f"{name}: {precision}")
    if precision is Precision.INT8:
        if model_batch_size(whole) not in (None, 1):
            raise QuantisationError(
                f"{name} has a batch of {model_batch_size(whole)} baked into its graph: export it with one"
            )
        whole = _in_int8(rewritten(whole, 1), frames)
    rmtree(folder, ignore_errors=True)
    (folder / _FILE).mkdir(parents=True)
    ov.save_model(whole, folder / _FILE / IR_NAME, compress_to_fp16=precision is Precision.FP16)
    labels = repository.labels(name, manifest) if manifest.labels or manifest.labels_file else None
    written = _manifest(
        manifest,
        name,
        called,
        precision=precision,
        labels=labels,
        batch=model_batch_size(whole),
        sha256=tree_sha256(folder / _FILE),
    )
    _write(written, folder)
    cpu = Placement(device="cpu")
    with repository.load(name, cpu) as source, repository.load(called, cpu) as model:
        on_step(f"{called} against {name}")
        agreed, before, after = _compared(source, model, frames.judged)
    _write(written.model_copy(update={"agreement": agreed}), folder)
    sizes = [_megabytes(each) for each in (path, folder / _FILE)]
    return Quantised(folder, len(frames.judged), agreed, before, after, *sizes)


def _in_int8(model: Any, frames: CalibrationFrames) -> Any:
    """The ov.Model with convolutions in 8 bits: weights by channel and symmetric, activations by tensor."""
    try:
        nncf: Any = import_module("nncf")
    except ModuleNotFoundError as error:
        raise MissingExtraError("quantisation to int8", error.name or "nncf", "convert") from error
    nncf.set_log_level(logging.ERROR)
    dataset = nncf.Dataset([picture[np.newaxis] for picture in frames.calibration])
    with contextlib.redirect_stdout(io.StringIO()):  # Its progress bars.
        return nncf.quantize(
            model,
            dataset,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(frames.calibration),
            fast_bias_correction=True,
            ignored_scope=nncf.IgnoredScope(types=list(_LEFT_FLOAT), validate=False),
        )


def _manifest(
    source: Manifest,
    name: str,
    called: str,
    *,
    precision: Precision,
    labels: Labels | None,
    batch: int | None,
    sha256: str,
) -> Manifest:
    """That of the new model; its file holds all that the source's manifest asks to be done around the model."""
    document = source.model_dump(mode="json", exclude_none=True, exclude={"labels_file", "box_format", "engine"})
    heads = {
        head: {"tensor": head, "kind": OutputKind.TENSOR if source.task is Task.TENSORS else _KINDS[head]}
        for head in source.heads
    }
    picture = source.input.model_dump(include={"height", "width", "layout", "resize"}, mode="json")
    document |= {
        "name": called,
        "description": f"{source.description} ({name} in {precision})".strip(),
        "format": "openvino",
        "precision": precision,
        "converted_from": {"model": name, "sha256": source.sha256},
        "file": _FILE,
        "sha256": sha256,
        "input": {**picture, "tensor": IMAGES, "dtype": "uint8"},
    }
    document |= {"output": next(iter(heads.values()))} if source.output else {"outputs": heads}
    if batch is not None:
        document["batching"] = {"max_size": batch}
    if labels is not None:
        named = zip(labels.names, labels.colours, strict=True)
        document["labels"] = [{"name": label, "colour": colour} for label, colour in named]
    return Manifest.model_validate(document)


def _write(manifest: Manifest, folder: Path) -> None:
    (folder / MANIFEST_NAME).write_text(manifest.to_yaml(), encoding="utf-8")


def _compared(source: Model, model: Model, judged: Sequence[Judged]) -> tuple[float, float | None, float | None]:
    """The share of equal labels, and both models' mean IoU where what is true is known in the model's own classes."""
    names = source.card.labels.names
    knows = source.card.task is Task.SEGMENTATION and names == tuple(CLASSES)
    confusions = [Confusion.empty(len(names)) for _ in range(2)]
    shares = []
    for each in judged:
        answers: list[Outputs] = [every.infer(each.picture[np.newaxis]) for every in (source, model)]
        shares.append(agreement(source.manifest, *answers))
        if knows and each.truth is not None and each.geometry is not None:
            masks = [to_source(answer["mask"][0], each.geometry, UNSEEN) for answer in answers]
            saw = masks[0] != UNSEEN
            confusions = [
                confusion.with_masks(each.truth[saw], mask[saw])
                for confusion, mask in zip(confusions, masks, strict=True)
            ]
    before, after = (_mean_iou(each) if each.counts.any() else None for each in confusions)
    return float(np.mean(shares)), before, after


def _mean_iou(confusion: Confusion) -> float:
    """Over the classes that were there, but `none`."""
    judged = [place for place, name in enumerate(CLASSES) if name != UNLABELLED and confusion.counts[place].any()]
    return float(np.mean(confusion.intersection_over_union()[judged]))


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files) / _MB
