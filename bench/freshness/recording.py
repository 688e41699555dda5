"""Drives with the results of both models, recorded once, so that every presenter sees the same ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from cloud.models.opening import open_model
from edge.config import EdgeConfig
from edge.presenting.fuse import LocalOutput
from edge.presenting.presenter import Tick
from modelling.evaluation.class_map import ClassMap, class_map
from modelling.evaluation.streaming import Mask
from modelling.fusion.recording import labels_in_input, local_result
from rosbag_tools.drive.scene import WEATHERS, Drive
from rosbag_tools.drive.sensor import Sensor
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry
from shared.inference.model import Model, open_local
from shared.messages.model_card import ModelCard
from shared.models.manifest import Placement
from shared.models.repository import Repository

_FIRST_SEED = 970_001  # No model, threshold or fusion table has seen a drive from here on.
_WIDTH, _HEIGHT = 1936, 1216
_VEHICLE = EdgeConfig()  # The encodings by default.
ONE_CORE = Placement(device="cpu", instances=1, intra_threads=1, inter_threads=1)  # One core a drive.
_ROOT = Path("runs") / "freshness"
_IMAGES, _RESULTS = "images.npy", "results.npz"
_OF_FRAMES = ("images", "truths", "remote", "local", "drives", "sizes")  # Fields with an element for each frame.


@dataclass(frozen=True, slots=True)
class RecordedDrivePlan:
    """The settings of a recording."""

    number: int  # Number of the drive, from 0; it determines the seed and the weather.
    rate_hz: int
    frames: int
    models: Path
    model: str
    local_model: str
    width: int = _WIDTH  # Width of the camera's images.
    height: int = _HEIGHT

    @property
    def seed(self) -> int:
        """The seed of the drive and its camera."""
        return _FIRST_SEED + self.number

    @property
    def weather(self) -> str:
        """The weather; the drives have all of them in turn."""
        return WEATHERS[self.number % len(WEATHERS)]

    @property
    def name(self) -> str:
        """The name of the drive, the same at every rate."""
        return f"{self.seed} {self.weather}"

    def folder(self) -> Path:
        """Returns the folder of the recording, which is another one if a model changes."""
        repository = Repository(self.models)
        models = "-".join(repository.find(name).card().sha256[:8] for name in (self.model, self.local_model))
        return _ROOT / f"{self.seed}-{self.weather}-{self.rate_hz}hz-{self.frames}-{self.width}x{self.height}-{models}"


@dataclass(frozen=True, slots=True)
class RecordedDrive:
    """A drive in the size of the remote model's input, with what both models make of every frame.

    Each frame has an image, H×W×3 RGB, true labels and a result of the remote model, which may be None in a `RealDrive`.
    """

    card: ModelCard  # The remote model's.
    local_card: ModelCard | None
    geometry: Geometry  # From the camera's frames to the model's input.
    classes: ClassMap  # The compared classes.
    due_ns: Sequence[int]  # The time of each frame.
    images: Any
    truths: Any
    remote: Any
    local: Sequence[LocalOutput]  # Empty without a local model.
    drives: Sequence[str]  # The name of the continuous drive that each frame is part of.

    def local_output(self, tick: Tick) -> LocalOutput:
        """Returns what the vehicle's own model makes of the image of a tick."""
        return self.local[tick.sequence]

    def in_truth(self, mask: Mask) -> Mask:
        """Returns a result in the size of the true labels, which by default is that of the results."""
        return mask


@dataclass(frozen=True, slots=True)
class SyntheticDrive(RecordedDrive):
    """A rendered drive."""

    plan: RecordedDrivePlan
    sizes: tuple[tuple[int, int], ...]  # Bytes of each encoded frame and of its encoded result.
    rate_hz: int

    @property
    def name(self) -> str:
        """The name of the drive, the same at every rate."""
        return self.plan.name

    @property
    def period_ns(self) -> int:
        """The time between two frames."""
        return round(1e9 / self.rate_hz)

    def only_every(self, number: int) -> "SyntheticDrive":
        """Returns the drive as a slower camera sees it, with every n-th frame."""
        parts = {name: getattr(self, name)[::number] for name in _OF_FRAMES}
        rate_hz = self.rate_hz // number
        return replace(self, **parts, rate_hz=rate_hz, due_ns=_due_ns(len(parts["images"]), rate_hz))


def _due_ns(frames: int, rate_hz: int) -> range:
    period_ns = round(1e9 / rate_hz)
    return range(0, frames * period_ns, period_ns)


def record_drive(plan: RecordedDrivePlan, on_frame: Callable[[int], None] = lambda _: None) -> SyntheticDrive:
    """Returns a recording, which is made if it does not exist; `on_frame` receives the number of frames so far."""
    folder = plan.folder()
    repository = Repository(plan.models)
    if not folder.exists():
        local = repository.find(plan.local_model)
        draft = folder.with_name(f"{folder.name}.part")
        rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with (
            open_model(repository.find(plan.model), placement=ONE_CORE, max_batch=1) as model,
            # The scores are a second output, as a presenter opens the model.
            open_local(replace(local, manifest=local.manifest.with_confidence_head()), ONE_CORE) as local_model,
        ):
            _write(draft, plan, model, local_model, on_frame)
        draft.rename(folder)
    with np.load(folder / _RESULTS) as results:
        stored: dict[str, Any] = dict(results)
    masks = stored["local"]
    card = repository.find(plan.model).card()
    return SyntheticDrive(
        card,
        repository.find(plan.local_model).card(),
        _geometry(plan, card),
        class_map(card.labels.names, None),  # The classes of the models.
        _due_ns(plan.frames, plan.rate_hz),
        np.load(folder / _IMAGES, mmap_mode="r"),
        stored["truths"],
        stored["remote"],
        [LocalOutput(*each) for each in zip(masks, stored.get("probabilities", [None] * len(masks)), strict=True)],
        [plan.name] * plan.frames,
        plan=plan,
        sizes=tuple(map(tuple, stored["sizes"].tolist())),
        rate_hz=plan.rate_hz,
    )


def _geometry(plan: RecordedDrivePlan, card: ModelCard) -> Geometry:
    return geometry.plan(card.resize, plan.height, plan.width, card.height, card.width)


def _write(
    folder: Path, plan: RecordedDrivePlan, model: Model, local_model: Model, on_frame: Callable[[int], None]
) -> None:
    """Renders the drive and runs both models on it."""
    resize = _geometry(plan, model.card)
    drive = Drive(plan.seed, width=plan.width, height=plan.height, weather=plan.weather)
    sensor = Sensor(plan.seed, Layout.BAYER_RGGB8)
    shape = (plan.frames, model.card.height, model.card.width)
    images = np.lib.format.open_memmap(folder / _IMAGES, "w+", np.uint8, (*shape, 3))
    truths, remote = (np.zeros(shape, np.uint8) for _ in range(2))
    local: list[LocalOutput] = []
    sizes = []
    for index in range(plan.frames):
        scene = drive.render(index / plan.rate_hz)
        colour = to_colour(sensor.capture(scene.rgb, index), Layout.BAYER_RGGB8, Layout.RGB8, "binning")
        images[index] = geometry.apply(colour, resize)
        truths[index] = labels_in_input(scene.class_ids, resize)
        image = images[index][..., ::-1] if model.card.layout is Layout.BGR8 else images[index]
        remote[index] = model.predict(np.ascontiguousarray(image)[np.newaxis])[0]
        local.append(local_result(local_model, images[index], resize))
        encoded = (
            image_codecs.encode(images[index], Layout.RGB8, _VEHICLE.codec, _VEHICLE.quality),
            image_codecs.encode_mask(remote[index], _VEHICLE.mask_codec),
        )
        sizes.append([len(each) for each in encoded])
        on_frame(index + 1)
    images.flush()
    arrays: dict[str, Any] = {"truths": truths, "remote": remote, "sizes": sizes}
    arrays["local"] = [each.result for each in local]
    if local[0].probabilities is not None:
        arrays["probabilities"] = [each.probabilities for each in local]
    np.savez_compressed(folder / _RESULTS, **arrays)
