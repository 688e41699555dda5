"""The outputs of a vehicle at its ticks, compared with its frames: a panning scene whose labels follow from the pixels."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.presenting.fusion_table import FusionHeader, FusionTable, table_shape, write_fusion
from ops.processes.null_worker import NullWorkerSettings, expected_labels, null_model
from ops.processes.vehicle_process import VehicleProcess
from shared.imaging.opencv import cv2
from shared.messages.topics import camera_name
from shared.models.repository import Repository
from shared.reuse.tuning import TunedModelSection
from shared.runlog.presented_log import OutputOrigin, PresentedRow, read_presented
from tests.support.faults.rig import HEIGHT, MODEL, WIDTH, Rig, read_image

_LEFT_OUT = ("skipped", "failed", "hung", "stopped", "aborted")  # Reasons: the presenter gave no output.
_EXACT = (OutputOrigin.REMOTE, OutputOrigin.LOCAL)  # Masks as a model computed them, pixel for pixel.
_COARSE, _FINE = (6.0, 45.0), (1.5, 12.0)  # Width of the filter in pixels, and contrast in grey levels.
_SEED = 30
_AGES_MS = (100.0, 300.0, 1000.0)  # Ages of the fusion file; above the last one, the local model decides alone.
_LAST_FIT = 1  # The last of the ranges of differences in brightness in which a moved picture fits.


class PresentedTicks:
    """The outputs of a vehicle that has ended; its source is a folder of images, its sink png, its worker a null worker."""

    def __init__(self, vehicle: VehicleProcess) -> None:
        """Reads the log of outputs.

        Raises:
            LogError: the vehicle presented nothing, or its log is damaged.
        """
        self.rows = sorted(read_presented(vehicle.folder), key=lambda row: row.tick)
        self._vehicle = vehicle
        self._indices = {row.tick: row.frame_index or 0 for row in self.rows}

    def due(self, since_ns: float, until_ns: float = float("inf")) -> list[PresentedRow]:
        """Returns the rows of ticks from the first time to before the second."""
        return [row for row in self.rows if since_ns <= (row.due_ns or 0) < until_ns]

    @property
    def unaccounted(self) -> int:
        """Number of frames that do not have exactly one tick, and of ticks without a frame."""
        frames = {int(row["sequence"]) for row in self._vehicle.rows()}
        return len(frames ^ self._indices.keys()) + len(self.rows) - len(self._indices)

    @property
    def left_out(self) -> int:
        """Number of ticks that the presenter did not take, or at which it failed."""
        return len(self.rows) - len(taken(self.rows))

    @cached_property
    def wrong_masks(self) -> int:
        """Number of presented masks that are missing, or not those of the frame and model that the row names.

        Masks that were moved are not judged here, but by `wrong_pixels`.
        """
        wrong = 0
        for row in self._with_output:
            of = row.tick if row.source_sequence is None else row.source_sequence
            mask, truth = self._mask(row), self._truth(self._indices[of])
            is_wrong = not np.array_equal(mask, truth) if row.origin in _EXACT else mask.shape != truth.shape
            wrong += is_wrong
        return wrong

    def wrong_pixels(self) -> dict[OutputOrigin, list[float]]:
        """Returns by origin the share of pixels of each mask that are wrong for the frame of the tick."""
        shares: defaultdict[OutputOrigin, list[float]] = defaultdict(list)
        for row in self._with_output:
            mask, truth = self._mask(row), self._truth(self._indices[row.tick])
            shares[row.origin].append(float(np.mean(mask != truth)) if mask.shape == truth.shape else 1.0)
        return dict(shares)

    @property
    def _with_output(self) -> list[PresentedRow]:
        return [row for row in self.rows if row.origin is not OutputOrigin.NONE]

    @cached_property
    def _truths(self) -> list[npt.NDArray[np.uint8]]:
        """The labels of each image of the source."""
        paths = sorted(self._vehicle.source.iterdir())
        return [expected_labels(read_image(path)[..., ::-1]) for path in paths]  # OpenCV reads BGR.

    def _truth(self, frame_index: int) -> npt.NDArray[np.uint8]:
        return self._truths[frame_index % len(self._truths)]  # With `--loop` the index continues.

    def _mask(self, row: PresentedRow) -> npt.NDArray[np.uint8]:
        name = f"{row.frame_index:06d}.png"
        return read_image(self._vehicle.folder / "presented" / "masks" / camera_name(row.camera) / name)


def panning_pictures(rig: Rig, ticks: int) -> Path:
    """Returns a folder of images in which a soft texture moves by one pixel a tick, for `ticks` images, and back.

    The last image is followed by the first one, so that a vehicle can repeat them.
    """
    folder = rig.folder / f"panning-{ticks}"
    if not folder.exists():
        folder.mkdir()
        noise = np.random.default_rng(_SEED).normal(size=(HEIGHT, WIDTH + ticks, 3))
        texture = sum(contrast * _smooth(noise, width) for width, contrast in (_COARSE, _FINE))
        scene = np.clip(128 + texture, 0, 255).astype(np.uint8)
        for index, left in enumerate([*range(ticks), *range(ticks - 2, 0, -1)]):
            cv2.imwrite(str(folder / f"{index:05d}.png"), scene[:, left : left + WIDTH])
    return folder


def write_fusion_file(rig: Rig, models: Path, local_model: str) -> Path:
    """Writes a fusion file for the null workers' model and a local one that gives the same labels.

    The local model decides where the moved picture does not fit the present one, the moved result elsewhere.
    """
    path = rig.folder / "fusion.npz"
    reference = null_model(NullWorkerSettings(model=MODEL)).card
    local = Repository(models).find(local_model).card()
    labels = len(reference.labels.names)
    classes = np.empty(table_shape(len(_AGES_MS), labels), np.uint8)
    classes[:] = np.arange(labels)[:, np.newaxis]  # Of the moved result, whose axis is the last but one.
    classes[:, _LAST_FIT + 1 :] = np.arange(labels)  # Of the local one.
    header = FusionHeader(
        task="segmentation",
        reference=TunedModelSection(name=reference.name, sha256=reference.sha256),
        local=TunedModelSection(name=local.name, sha256=local.sha256),
        labels=labels,
        ages_ms=_AGES_MS,
        drives=("none: chosen by hand",),
        ticks=1,
    )
    write_fusion(path, FusionTable(header, {"classes": classes}))
    return path


def taken(rows: Sequence[PresentedRow]) -> list[PresentedRow]:
    """Returns the ticks that a presenter took and at which it did not fail."""
    return [row for row in rows if row.reason.partition(":")[0] not in _LEFT_OUT]


def stages(rows: Sequence[PresentedRow]) -> list[str]:
    """Returns the origins of outputs, or the reasons for missing ones, once for each period with the same one."""
    return [stage for stage, _ in groupby(row.reason.partition(":")[0] or row.origin.value for row in taken(rows))]


def _smooth(noise: npt.NDArray[np.float64], width: float) -> npt.NDArray[np.float64]:
    """Returns filtered noise with a standard deviation of 1."""
    smooth = np.asarray(cv2.GaussianBlur(noise, (0, 0), width), np.float64)
    return np.asarray(smooth / smooth.std(), np.float64)
