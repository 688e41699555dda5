"""Post-training quantisation: writes a model with fewer bits for OpenVINO and measures the loss of accuracy.

Some frames are for calibration, others for the measurement.
"""

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.models.loader import ModelLoader
from modelling.conversion.derived_model import derived_manifest, end_to_end_sections, megabytes, write_manifest
from modelling.evaluation.bag_images import prepared_images
from modelling.evaluation.metrics import Confusion
from rosbag_tools.drive.drive_views import (
    HELD_OUT_WEATHER,
    TRAINING_WEATHERS,
    DriveView,
    generator,
    rendered_view,
    training_views,
    validation_views,
)
from rosbag_tools.drive.scene import CLASSES
from shared.errors import MissingExtraError, SkylaneError
from shared.files import tree_sha256
from shared.imaging.frames import Layout
from shared.imaging.geometry import UNSEEN, Geometry, Resize, plan, to_source
from shared.inference.engine import Outputs
from shared.inference.model import Model, agreement
from shared.messages.model_card import ModelCard
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from shared.task import task_named

_VIEWS_PER_DRIVE = 2

Image = npt.NDArray[np.uint8]  # H×W×3 in the model's size and channel order.


class CalibrationError(SkylaneError):
    """A bag has too few frames to quantise a model."""


@dataclass(frozen=True, slots=True)
class HoldoutFrame:
    """A frame that is not used for calibration."""

    image: Image
    truth: npt.NDArray[np.uint8] | None = None  # The true class ids in the camera's size, if known.
    geometry: Geometry | None = None  # The mapping from the camera's size to the image's, if there is a truth.


@dataclass(frozen=True, slots=True)
class CalibrationFrames:
    """The images to calibrate with, and the frames to compare the models on."""

    calibration: Sequence[Image]
    holdout: Sequence[HoldoutFrame]


def synthetic_frames(card: ModelCard, count: int, holdout: int) -> CalibrationFrames:
    """Renders `count` frames of training drives and `holdout` frames of drives that no model was trained on."""
    weathers = (*TRAINING_WEATHERS, HELD_OUT_WEATHER)
    return CalibrationFrames(
        [each.image for each in _rendered(card, training_views(count, _VIEWS_PER_DRIVE))],
        list(_rendered(card, validation_views(holdout, weathers, _VIEWS_PER_DRIVE))),
    )


def bag_frames(card: ModelCard, bag: Path, count: int, holdout: int) -> CalibrationFrames:
    """Reads the first `count` frames of a bag, and at most `holdout` frames after them.

    Raises:
        CalibrationError: the bag has no frame after the first `count`.
        SkylaneError: the bag cannot be read.
    """
    images = prepared_images(bag, card, count + holdout)
    if len(images) <= count:
        raise CalibrationError(
            f"{bag} holds {len(images)} readable frames: more than --frames {count} are needed, "
            "because the loss is measured on other frames"
        )
    return CalibrationFrames(images[:count], [HoldoutFrame(image) for image in images[count:]])


def _rendered(card: ModelCard, views: Sequence[DriveView]) -> Iterator[HoldoutFrame]:
    for view in views:
        scene, rgb = rendered_view(view, card.height, card.width, generator(view))
        rows, columns = scene.class_ids.shape
        geometry = plan(Resize.CROP, rows, columns, card.height, card.width)
        image = rgb if card.layout is Layout.RGB8 else np.ascontiguousarray(rgb[..., ::-1])
        yield HoldoutFrame(image, scene.class_ids, geometry)


try:
    from cloud.engines.openvino.graph import IMAGES, IR_NAME, model_batch_size, optimised, read_end_to_end
    from cloud.engines.openvino.runtime import core, ov
except ModuleNotFoundError as error:
    raise MissingExtraError("quantisation", "openvino", "convert,openvino") from error

_FILE = "ir"  # The folder of model.xml and model.bin in the model's folder.
# Operations that stay in float: they are fast enough, and quantising them costs a pass over the map.
_FLOAT_OPERATIONS = ("Add", "AvgPool", "Divide", "Interpolate", "Multiply", "ReduceMean", "Subtract")


class QuantisationError(SkylaneError):
    """A model cannot be quantised."""


@dataclass(frozen=True, slots=True)
class QuantisedModel:
    """The new model's folder, and the comparison with the source model on the holdout frames."""

    folder: Path
    frames: int
    agreement: float  # Share of labels equal to the source model's, 0 to 1.
    mean_iou_before: float | None  # None if there is no ground truth of its classes.
    mean_iou_after: float | None
    megabytes_before: float
    megabytes_after: float


def quantise(
    repository: Repository,
    name: str,
    precision: Precision,
    frames: CalibrationFrames,
    *,
    new_name: str,
    replace: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> QuantisedModel:
    """Adds `name` in `precision`, fp16 or int8, to the repository as model `new_name` of format `openvino`.

    fp16 rounds the weights. int8 quantises convolutions, with activation ranges measured on the calibration frames.

    Raises:
        QuantisationError: the folder exists without `replace`, or the model is remote, quantised already, or (int8) has a
            fixed batch size above 1.
        MissingExtraError: NNCF is not installed.
        SkylaneError: the model cannot be read.
    """
    folder = repository.root / new_name
    if folder.exists() and not replace:
        raise QuantisationError(f"{folder} exists already: choose another --name, or give --force to replace it")
    stored = repository.find(name)
    manifest, path = stored.manifest, stored.file()
    if manifest.remote is not None:
        raise QuantisationError(f"{name} is on another server, {manifest.remote.address}: quantise it there")
    if manifest.precision is not Precision.FP32:
        raise QuantisationError(
            f"{name} holds {manifest.precision} numbers already: quantise the model that it was made from"
        )
    model = read_end_to_end(core(), path, manifest)
    on_step(f"{name}: {precision}")
    if precision is Precision.INT8:
        if model_batch_size(model) not in (None, 1):
            raise QuantisationError(f"{name} has a fixed batch size of {model_batch_size(model)}: export it with 1")
        model = _to_int8(optimised(model, 1), frames)
    rmtree(folder, ignore_errors=True)
    (folder / _FILE).mkdir(parents=True)
    ov.save_model(model, folder / _FILE / IR_NAME, compress_to_fp16=precision is Precision.FP16)
    labels = stored.labels() if manifest.labels or manifest.labels_file else None
    heads = {head: head for head in manifest.heads}
    changes = {
        "name": new_name,
        "description": f"{manifest.description} ({name} in {precision})".strip(),
        "format": "openvino",
        "precision": precision,
        "converted_from": {"model": name, "sha256": manifest.sha256},
        "file": _FILE,
        "sha256": tree_sha256(folder / _FILE),
        **end_to_end_sections(manifest, IMAGES, heads, batch_size=model_batch_size(model)),
    }
    quantised = derived_manifest(manifest, labels, changes)
    write_manifest(quantised, folder)
    cpu = Placement(device="cpu")
    with ModelLoader(repository, cpu).open(name) as source, ModelLoader(repository, cpu).open(new_name) as loaded:
        on_step(f"{new_name} against {name}")
        share, iou_before, iou_after = _compare(source, loaded, frames.holdout)
    write_manifest(quantised.model_copy(update={"agreement": share}), folder)
    sizes = [megabytes(each) for each in (path, folder / _FILE)]
    return QuantisedModel(folder, len(frames.holdout), share, iou_before, iou_after, *sizes)


def _to_int8(model: Any, frames: CalibrationFrames) -> Any:
    """Returns the ov.Model with 8-bit convolutions: symmetric weights per channel, activations per tensor."""
    try:
        nncf: Any = import_module("nncf")
    except ModuleNotFoundError as error:
        raise MissingExtraError("quantisation to int8", error.name or "nncf", "convert") from error
    logging.getLogger("nncf").setLevel(logging.ERROR)  # Its own function would change the handlers, too.
    dataset = nncf.Dataset([image[np.newaxis] for image in frames.calibration])
    with contextlib.redirect_stdout(io.StringIO()):  # Hides NNCF's progress bars.
        return nncf.quantize(
            model,
            dataset,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(frames.calibration),
            fast_bias_correction=True,
            ignored_scope=nncf.IgnoredScope(types=list(_FLOAT_OPERATIONS), validate=False),
        )


def _compare(source: Model, model: Model, frames: Sequence[HoldoutFrame]) -> tuple[float, float | None, float | None]:
    """Returns the share of equal labels, and both models' mean IoU if the truth has the model's classes."""
    names = source.card.labels.names
    has_truth = task_named(source.card.task).has_shape and names == tuple(CLASSES)
    confusions = [Confusion.empty(len(names)) for _ in range(2)]
    shares = []
    for frame in frames:
        outputs: list[Outputs] = [each.infer(frame.image[np.newaxis]) for each in (source, model)]
        shares.append(agreement(source.manifest, *outputs))
        if has_truth and frame.truth is not None and frame.geometry is not None:
            masks = [to_source(each["mask"][0], frame.geometry, UNSEEN) for each in outputs]
            visible = masks[0] != UNSEEN
            confusions = [
                confusion.with_masks(frame.truth[visible], mask[visible])
                for confusion, mask in zip(confusions, masks, strict=True)
            ]
    before, after = (each.mean_iou(CLASSES) if each.counts.any() else None for each in confusions)
    return float(np.mean(shares)), before, after
